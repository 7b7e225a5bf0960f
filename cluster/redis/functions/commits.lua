-- The state that a node commits at the end of a turn, and the acknowledgements of its clients.

-- Append the messages of the push with this number to their queue.
local function push_one(number, job)
  local prefix, node, messages, firsts = job.prefix, job.node, job.messages, job.firsts
  local most, most_bytes, drop_old = job.most, job.most_bytes, job.drop_old
  local item = job.list[number]
  local cid, incarnation = item[1], item[2]
  local key, tenant = prefix .. 's:' .. cid, tenants.of(cid)
  local state = redis.call('HMGET', key, 'o', 'x', 'h', 'b', 'z', 'm')
  local owner = state[1]
  if state[6] then
    local own, own_bytes, policy = string.match(state[6], '^(%d+) (%d+) ([01])$')
    if own then
      most, most_bytes, drop_old = tonumber(own), tonumber(own_bytes), policy == '1'
    end
  end
  local first, count, dropped = 0, #item - 2, 0
  if state[2] and tonumber(state[2]) == incarnation then
    local queue = prefix .. 'q:' .. cid
    local head, marks = state[3] + 0, state[5] + 0                           -- fails before the first write
    local before = (state[4]) + 0
    local quota = job.limits and before + tenants.free(prefix, job.limits, tenant) or job.unlimited
    local values, length, bytes, earliest = {}, 0, before, nil
    for i = 3, #item do
      local value = messages[item[i]]
      values[i - 2] = value
      bytes = bytes + #value
      if value:byte() >= 32 then                 -- it may expire
        local deadline = queues.deadline_of(value)
        earliest = deadline and (not earliest or deadline < earliest) and deadline or earliest
      end
    end
    local added = bytes - before
    for i = 1, #values, AT_ONCE do
      length = redis.call('RPUSH', queue, unpack(values, i, math.min(i + AT_ONCE - 1, #values)))
    end
    if length == #values then
      bytes = added            -- it was empty: after a loss of data a node may have acknowledged other messages
    end
    if job.notes then
      note_tail(key, incarnation, head + length - #values)
    end
    if earliest and owner == '' then
      queues.note_deadline(key, earliest)
    end
    local is_over = queues.is_over(length, bytes, most, most_bytes, quota)
    local acked = is_over and queues.done(key, marks) or 0
    if acked > 0 then
      is_over = queues.is_over(length - acked, bytes, most, most_bytes, quota)
    end
    if is_over then
      local least = #values          -- up to the last one of a group: its lease has ended, no other member would get it
      while least > 0 and not part_of_group(values[least]) do
        least = least - 1
      end
      local more = redis.call('HMGET', key, 'w', 'n', 'y', 'e')
      local kept, looks_on = math.max(more[2] - head, 0), false       -- entries that may have been sent
      local is_absent = owner == '' and not earlier.may_have_sent(prefix, more[1] or '')
      if is_absent and acked > 0 then
        local returned = queues.remove_returned(prefix, cid, head, kept, length)
        length, marks, acked = length - returned, marks - returned, acked - returned
        redis.call('HSET', key, 'z', marks, 'a', acked)
      end
      if is_absent then
        local expired, freed
        expired, freed, looks_on = queues.remove_expired(key, queue, more[3], more[4], kept, length, bytes,
          clock(prefix))
        length, bytes, job.expired = length - expired, bytes - freed, job.expired + expired
      end
      is_over = not looks_on and queues.is_over(length - acked, bytes, most, most_bytes, quota)
      if is_over and is_absent and drop_old and least == 0 then
        while length > kept and queues.is_over(length - acked, bytes, most, most_bytes, quota) do
          bytes = bytes - queues.remove(queue, kept, length)
          length, dropped = length - 1, dropped + 1
        end
        if kept == 0 then                        -- the others keep their numbers
          head = head + dropped
          redis.call('HSET', key, 'h', head)
        end
        count = math.min(count, length - kept)
      elseif is_over
          and (bytes > quota or not (drop_old and length - acked <= 2 * most and bytes <= 2 * most_bytes)) then
        while count > least and queues.is_over(length - acked, bytes, most, most_bytes, quota) do
          bytes = bytes - #redis.call('RPOP', queue)
          length = length - 1
          count = count - 1
          dropped = dropped + 1
        end
      end
    end
    write_bytes(tenant, key, before, bytes)
    if dropped > 0 then
      job.dropped = job.dropped + dropped
      job.full[#job.full + 1] = cid
      job.full[#job.full + 1] = dropped
    end
    if count > 0 then
      first = head + length - count
      if owner ~= node and owner ~= '' then
        local told = job.others[owner]
        if not told then
          told = {at = {}, messages = {}, items = {}, has_large = false}
          job.others[owner] = told
        end
        local copy = {cid, first}
        for i = #item - #values + 1, #item - #values + count do
          local index = item[i]
          if not told.at[index] then
            told.messages[#told.messages + 1] = messages[index]
            told.at[index] = #told.messages
          end
          copy[#copy + 1] = told.at[index]
        end
        told.items[#told.items + 1] = copy
        told.has_large = told.has_large or added >= LARGE * #values
      end
    end
  end
  firsts[#firsts + 1] = owner == node and first or 0
  firsts[#firsts + 1] = count
end

local function push_failed(number, reason, job)
  client_failed(number, reason, job)
  job.firsts[#job.firsts + 1] = 0
  job.firsts[#job.firsts + 1] = 0
end

-- Append messages to queues. Appends to `firsts` for each push: number of its first message (0 = the client is at
-- another node), count. `limits`: see `tenants.free`. Returns the number of dropped messages, {client id, its dropped
-- messages, ...}, and the number of messages that had expired in full queues.
local function push(prefix, node, messages, pushes, most, most_bytes, drop_old, firsts, limits)
  local job = {prefix = prefix, node = node, messages = messages, list = pushes, most = most, most_bytes = most_bytes,
    drop_old = drop_old, firsts = firsts, others = {}, dropped = 0, expired = 0, full = {},
    notes = noted_tails(prefix) ~= nil, limits = limits, unlimited = math.huge}
  each(#pushes, push_one, push_failed, job)
  for owner, told in pairs(job.others) do
    if told.has_large then
      send_apart(prefix, owner, told.messages, 1)
    end
    tell(prefix, owner, 'pushed', told.messages, told.items)
  end
  return job.dropped, job.full, job.expired
end

-- Apply a record of a change; `retained`: messages by topic name that are not written yet, '' = to be removed;
-- `comes_back`: a later record of the block has the route that this one removes. Returns whether it is valid, so that
-- the other nodes have to apply it too.
local function apply_record(prefix, node, record, retained, comes_back)
  local kind, name = record[1], record[2]
  if kind == 'subscribed' or kind == 'unsubscribed' then
    local cid, filter = name, record[4]
    if tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x') or -1) ~= record[3] then
      return false
    end
    if kind == 'subscribed' then
      redis.call('HSET', prefix .. 'subs:' .. cid, filter,
        record[6] and string.format('%.0f;%.0f', record[5], record[6]) or record[5])
    else
      redis.call('HDEL', prefix .. 'subs:' .. cid, filter)
    end
    if is_group(filter) then
      attempt(prefix, GROUP, filter, kind == 'subscribed' and join_group or leave_group, prefix, filter, 'c:' .. cid)
    end
  elseif kind == 'route' then
    redis.call('HSET', prefix .. 'routes:' .. node, name, record[3])
    if is_group(name) then
      attempt(prefix, GROUP, name, join_group, prefix, name, 'n:' .. node, node)
    end
  elseif kind == 'unroute' then
    redis.call('HDEL', prefix .. 'routes:' .. node, name)
    if is_group(name) and not comes_back then    -- else the room that the node has announced with this block stays
      attempt(prefix, GROUP, name, leave_group, prefix, name, 'n:' .. node, node)
    end
  elseif kind == 'expired' then
    -- Each node drops its own copy; the value in Redis may be newer than theirs.
    local deadline = queues.deadline_of(retained[name] or redis.call('HGET', prefix .. 'retained', name) or '')
    if deadline and deadline <= clock(prefix) + CLOCK_AHEAD then
      retained[name] = ''
    end
    return false
  elseif kind == 'retained' then
    retained[name] = record[3]
  end
  return true
end

local function apply_one(i, job)
  local record = job.list[i]
  if apply_record(job.prefix, job.node, record, job.retained, (job.routed[record[2]] or 0) > i) then
    local is_value = record[1] == 'retained'
    job.has_values = job.has_values or is_value
    job.kept[#job.kept + 1] = record
    job.slim[#job.slim + 1] = is_value and {record[1], record[2]} or record
  end
end

local function apply_failed(i, reason, job)
  note_damage(job.prefix, CLIENT, job.list[i][2], reason)
end

-- Apply the changes of a block. `list`: its records; the last one is the mark of the change. Returns the number of the
-- change; 0 if no record of it is valid.
local function apply(prefix, node, block, list)
  local job = {prefix = prefix, node = node, list = list, kept = {}, slim = {}, has_values = false, retained = {},
    routed = {}}
  for i = 1, #list do
    if list[i][1] == 'route' then
      job.routed[list[i][2]] = i
    end
  end
  each(#list, apply_one, apply_failed, job)
  local kept, written, removed = job.kept, {}, {}
  for topic, message in pairs(job.retained) do
    if message == '' then
      removed[#removed + 1] = topic
    else
      written[#written + 1], written[#written + 2] = topic, message
    end
  end
  in_parts('HSET', prefix .. 'retained', written, 2)
  in_parts('HDEL', prefix .. 'retained', removed)
  if #kept == 0 or (#kept == 1 and kept[1][1] == 'mark') then
    return 0
  end
  if #kept < #list then
    block = cmsgpack.pack(kept)
  end
  return change(prefix, node, block, job.has_values and cmsgpack.pack(job.slim) or block)
end

-- The connection of an epoch has ended, and its will has a delay: keep the will until it is due, whoever publishes it
-- then. It is held if another connection has claimed the session by now, and due at once if the session has ended.
local function delay_will(prefix, node, cid, epoch, delay, state)
  local id = string.format('%.0f', epoch)
  local will = redis.call('HGET', prefix .. 'wills:' .. node, id)
  redis.call('HDEL', prefix .. 'wills:' .. node, id)
  if not will then
    return
  end
  redis.call('HSET', prefix .. 'delayed:wills', id, will)
  local due = string.format('%.0f', clock(prefix) + delay * 1000)
  if not state[2] or state[6] == '0' or epoch < tonumber(state[6]) then
    redis.call('ZADD', prefix .. 'delayed', 0, id)
  elseif tonumber(state[2]) == epoch then
    redis.call('ZADD', prefix .. 'delayed', due, id)
    redis.call('HSET', prefix .. 's:' .. cid, 'd', id)
  else
    held.hold(prefix, cid, epoch, due)
  end
end

-- A node has closed a connection: the session is offline, has ended, or is claimed by a connection that waits for this.
-- `sent`: messages with lower numbers may have been sent; nil = the client was never admitted. `interval`: its Session
-- Expiry Interval in seconds plus 1, 0 = as configured, nil = as at the claim. `delay`: of its will in seconds plus 1,
-- 0 or nil = no will waits. `told`: what nodes have to be sent.
local function release(prefix, node, told, cid, epoch, sent, interval, delay)
  redis.call('SREM', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'p', 'w', 'n', 'x', 'i')
  if delay and delay > 0 then
    delay_will(prefix, node, cid, epoch, delay - 1, state)
  end
  if not state[2] then
    return
  end
  local of_this_life = epoch >= tonumber(state[6])
  if sent and of_this_life then
    held.drop(prefix, cid, epoch)
  end
  local first_unsent = math.max(of_this_life and sent or 0, tonumber(state[5]))
  if tonumber(state[2]) == epoch then
    local seconds = state[7] or ''
    if interval and seconds ~= '0' then          -- [5: 3.14.2.2.2]; or an operator has ended the session
      seconds = interval > 0 and string.format('%.0f', interval - 1) or ''
      redis.call('HSET', key, 'i', seconds)
    end
    redis.call('HSET', key, 'o', '', 'n', first_unsent)
    if state[4] == '' then
      held.resume(prefix, cid)
    end
    if state[3] == '1' and seconds ~= '0' then
      begin_expiry(prefix, cid, seconds)
      begin_grace(prefix, cid, told)
    else
      end_session(prefix, '', cid, state[6], state[3], told)
    end
    return
  end
  local waits = ''
  for old, where in state[4]:gmatch('([^=,]+)=([^,]*),') do
    if tonumber(old) ~= epoch then
      waits = waits .. old .. '=' .. where .. ','
    end
  end
  if waits == '' and state[6] == '0' then
    redis.call('DEL', key)                       -- its session has ended before
    return
  end
  redis.call('HSET', key, 'w', waits, 'n', first_unsent)
  if state[1] ~= '' then
    tell(prefix, state[1], 'released', cid, epoch)
  elseif waits == '' then
    held.resume(prefix, cid)                     -- the connection that waited for this has ended before
    begin_grace(prefix, cid, told)
  end
end

local function release_one(i, job)
  release(job.prefix, job.node, job.told, unpack(job.list[i]))
end

local function lives(prefix, cid, incarnation)
  return tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x') or 0) == incarnation
end

-- How far the publication of a message has come, to stand before it.
local function progress_head(progress)
  return struct.pack('<BI4', PROGRESS, progress)
end

-- A QoS 2 message is received, and awaits PUBREL; or it is released, and a part of its receivers have it.
local function await(i, job)
  local item = job.list[i]
  if lives(job.prefix, item[1], item[2]) then
    local message = job.messages[item[4]]
    if item[5] then
      message = progress_head(item[5]) .. message
    end
    redis.call('HSET', job.prefix .. 'in:' .. item[1], item[3], message)
  end
end

-- PUBREL is received.
local function await_no_more(i, job)
  local item = job.list[i]
  if lives(job.prefix, item[1], item[2]) then
    redis.call('HDEL', job.prefix .. 'in:' .. item[1], item[3])
  end
end

-- A will is settled; or a part of its receivers have it: {epoch, progress}; or it is held, and its client is admitted:
-- {epoch}.
local function settle_will(prefix, node, will)
  local key = prefix .. 'wills:' .. node
  if type(will) == 'number' then
    redis.call('HDEL', key, string.format('%.0f', will))
    return
  end
  local epoch = string.format('%.0f', will[1])
  if not will[2] then
    redis.pcall('HDEL', prefix .. 'delayed:wills', epoch)
    return
  end
  local stored = redis.call('HGET', key, epoch)
  if stored then
    local at = message_of_will(stored)
    local rest = stored:byte(at) == PROGRESS and at + PROGRESS_SIZE or at
    redis.call('HSET', key, epoch, stored:sub(1, at - 1) .. progress_head(will[2]) .. stored:sub(rest))
  end
end

-- The keys of a node, and those of all, that a block needs beside those of clients and groups.
local CHANGES = {kind = 'common', 'changes', 'stream', 'change', 'string', 'retained', 'hash'}
local LATER = {kind = 'common', 'later', 'zset', 'later:messages', 'hash', 'later:state', 'hash',
  'later:tenants', 'hash', 'epoch', 'string'}

-- Why nothing of a block can be applied, or nil. Reads only.
local function obstacle_of(prefix, node, wills, changes, later)
  local key, reason
  if #wills > 0 then
    key, reason = wrong_key(prefix, {'wills:', 'hash'}, node)
  end
  if not key and changes ~= '' then
    key, reason = wrong_key(prefix, {'routes:', 'hash'}, node)
    if not key then
      key, reason = wrong_key(prefix, CHANGES, '')
    end
    if not key and not tonumber(redis.call('GET', prefix .. 'change') or 0) then
      key, reason = prefix .. 'change', 'its value is no number'
    end
  end
  if not key and later then
    key, reason = wrong_key(prefix, LATER, '')
  end
  return key and refusal(key, reason)
end

-- args: prefix, node, seq, block, max queued messages, max queued bytes, 1 = drop the oldest, oldest entry of the log
-- to keep; the messages, to which the block refers by their places here; for the log of messages: id of an entry, the
-- entry, the oldest entry to keep; the batch with its header, if the block has 1 in its place. (Messages, entry and
-- batch are arguments of their own because unpacking copies the parts of a block, and Lua hashes each byte of a new
-- text.)
-- Returns {number of the change or 0, messages dropped at full queues, messages that had expired in full queues, first
-- queue number and count for each push, ...}. If steps have failed, `damaged` follows. If messages were dropped, or
-- steps have failed, {client id, its dropped messages, ...} follows. If the block has shares, {group, place, message,
-- ...} follows: messages leased to the caller. If messages of groups are in queues of the caller's sessions, a list of
-- items follows, see `nothing_told`. {'gone'}: the node is dead; {'again'}: this commit was applied; {'gap', last}: the
-- commit before it was not. An error: nothing was applied.
register('flockmq_commit', function(args)
  local prefix, node, seq = args[1], args[2], tonumber(args[3])
  local last = seq_of(prefix, node)
  if not last then
    return {'gone'}
  end
  if seq <= last then
    return {'again'}
  end
  if seq ~= last + 1 then
    return {'gap', last}
  end
  -- What may fail as a whole does so before anything is written.
  local count, pushes, log, header, targets, changes, awaiting, released, wills, releases, shares, moves,
    later, limits = unpack(cmsgpack.unpack(args[4]))
  local messages, entry = args, 9 + count          -- the place of the entry's id: messages come before it
  local has_entry = args[entry + 2] ~= nil
  local obstacle = has_entry and log_obstacle(prefix, node, args[entry], args[entry + 1])
  if obstacle == 'gap' then
    return {'gap', last}
  end
  limits = limits and tenants.limits(limits)
  local records = changes ~= '' and cmsgpack.unpack(changes)
  local refused = obstacle_of(prefix, node, wills, changes, later and later[1])
  if not refused and has_entry and not obstacle then
    refused = log_entry(prefix, node, args[entry], args[entry + 1], args[entry + 2])
  end
  local batch = log == 1 and args[#args]
  if not refused and batch then
    local names = {}
    for i = 1, #targets do
      names[i] = targets[i][1]
    end
    local key = prefix .. 'log:' .. node
    local last_order = tonumber(redis.pcall('HGET', prefix .. 'clock', 'l') or 0)
    local order = (last_order or 0) + 1           -- begins again if that is damaged
    local added = redis.pcall('XADD', key, 'MINID', '~', args[8], args[3] .. '-0', 'b', batch,
      't', ' ' .. table.concat(names, ' ') .. ' ', 'o', string.format('%.0f', order))
    refused = type(added) == 'table' and added.err and refusal(key, added.err)
    if not refused then
      redis.pcall('HSET', prefix .. 'clock', 'l', string.format('%.0f', order))
    end
  end
  if refused then
    return refused
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', seq)
  local told = nothing_told()
  local firsts, full = {0, 0, 0}, {}
  if #awaiting > 0 then
    each(#awaiting, await, client_failed, {prefix = prefix, list = awaiting, messages = messages})
  end
  if #released > 0 then
    each(#released, await_no_more, client_failed, {prefix = prefix, list = released})
  end
  for i = 1, #wills do
    settle_will(prefix, node, wills[i])
  end
  local waiting, checks = NOTHING, NOTHING
  if moves then
    waiting, checks = move(prefix, node, messages, moves, told)
  end
  if #pushes > 0 then
    firsts[2], full, firsts[3] = push(prefix, node, messages, pushes, tonumber(args[5]), tonumber(args[6]),
      args[7] == '1', firsts, limits)
  end
  if batch then
    for i = 1, #targets do
      local target = targets[i]
      publish(prefix .. 'to:' .. target[1], target[2] == '' and batch or header .. target[2])
    end
  end
  if records then
    local fine, number = attempt(prefix, CHANGES, '', apply, prefix, node, changes, records)
    firsts[1] = fine and number or 0
  end
  if #releases > 0 then
    each(#releases, release_one, client_failed, {prefix = prefix, node = node, list = releases, told = told})
  end
  dispatch_all(prefix, waiting, told)
  dispatch_all(prefix, woken, told)
  if shares then
    local dropped, expired = share(prefix, messages, shares, told, limits)
    firsts[2], firsts[3] = firsts[2] + dropped, firsts[3] + expired
  end
  if later and later[1] then
    attempt(prefix, LATER, '', delay_messages, prefix, messages, later)
  end
  -- Without shares the reply has no leases: what a release has given back may be leased to the caller.
  local leased, given = tell_all(prefix, shares and node or '', told)
  if checks[1] then
    check_keys(prefix, node, checks)
  end
  if #damaged > 0 then
    firsts[#firsts + 1] = damaged
  end
  if #full > 0 or #damaged > 0 then
    firsts[#firsts + 1] = full
  end
  if shares then
    firsts[#firsts + 1] = leased
  end
  firsts[#firsts + 1] = given
  return firsts
end)

-- Acknowledgements of a client.
local function acknowledge(i, job)
  local prefix = job.prefix
  local cid, incarnation, done, received, size = unpack(job.list[i])
  local key, states, tenant = prefix .. 's:' .. cid, prefix .. 'st:' .. cid, tenants.of(cid)
  local state = redis.call('HMGET', key, 'h', 'b', 'z', 'x', 'r')
  if not state[1] or tonumber(state[4]) ~= incarnation then
    return
  end
  local queue = prefix .. 'q:' .. cid
  local head, bytes, marks = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
  local noted = queues.done(key, marks)
  local acked, before = noted, bytes
  for j = 1, #received, 2 do
    local number, entry_size = received[j], received[j + 1]
    if number >= head and redis.call('HSETNX', states, number, 'r') == 1 then
      marks = marks + 1
      if entry_size > 0 and redis.pcall('LSET', queue, number - head, queues.NO_MESSAGE).ok then
        bytes = bytes - entry_size
      end
    end
  end
  local first, waiting = head, nil
  for j = 1, #done do
    local number = done[j]
    if number == head then
      head = head + 1
    elseif number > head then
      waiting = waiting or {}
      waiting[#waiting + 1] = number
    end
  end
  if waiting then
    for j = 1, #waiting do
      local freed, more_marks, more_acked = queues.finish(queue, states, waiting[j], waiting[j] - first)
      bytes, marks, acked = bytes - freed, marks + more_marks, acked + more_acked
    end
  end
  if #done ~= head - first then
    size = nil                                   -- it is that of others, too
  end
  if marks > 0 then
    for number = first, head - 1 do
      if acked > 0 and redis.call('HGET', states, number) == 'd' then
        acked, size = acked - 1, nil             -- it was done before
      end
      marks = marks - redis.call('HDEL', states, number)
    end
  end
  if tenant then
    tenants.add(tenant, bytes - before)
  end
  queues.drop_done(prefix, tenant, cid, first, head, bytes, marks, acked, noted, size, state[5])
end

-- args: prefix, node, acknowledgements of clients: {client id, incarnation, done numbers, {number with PUBREC, bytes of
-- its entry, 0 = it keeps its message, ...}, bytes of the entries that are done}. They free memory, so Redis executes
-- them when it has none left. Executing one twice has no effect. Then perhaps: what the node settles with
-- groups, see `settle`. Returns {'ok', {group, place, message, ...}: messages leased to the caller}, and `damaged` if
-- steps have failed or something follows: a list of items, see `nothing_told`.
register({function_name = 'flockmq_acks', flags = {'allow-oom'}, callback = function(args)
  local prefix = args[1]
  if not live(prefix, args[2]) then
    return {'gone'}
  end
  count_call(prefix, args[2])
  local list, settled = cmsgpack.unpack(args[3]), args[4] and cmsgpack.unpack(args[4])
  each(#list, acknowledge, client_failed, {prefix = prefix, list = list})
  local result, told, given = {'ok'}, nothing_told(), nil
  if settled then
    settle(prefix, args[2], settled, told)
  end
  dispatch_all(prefix, woken, told)
  if settled or next(woken) then
    result[2], given = tell_all(prefix, args[2], told)
  end
  if #damaged > 0 or given then
    result[2], result[3], result[4] = result[2] or {}, damaged, given
  end
  return result
end})
