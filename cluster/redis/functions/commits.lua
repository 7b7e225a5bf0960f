-- The state that a node commits at the end of a turn, and the acknowledgements of its clients.

-- Append the messages of the push with this number to their queue.
local function push_one(number, job)
  local prefix, node, messages, numbers = job.prefix, job.node, job.messages, job.numbers
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
  numbers[#numbers + 1] = owner == node and first or 0
  numbers[#numbers + 1] = count
end

local function push_failed(number, reason, job)
  client_failed(number, reason, job)
  job.numbers[#job.numbers + 1] = 0
  job.numbers[#job.numbers + 1] = 0
end

-- Append messages to queues. Appends to `numbers` for each push: number of its first message (0 = the client is at
-- another node), count. `limits`: see `tenants.free`. Returns the number of dropped messages, {client id, its dropped
-- messages, ...}, and the number of messages that had expired in full queues.
local function push(prefix, node, messages, pushes, most, most_bytes, drop_old, numbers, limits)
  local job = {prefix = prefix, node = node, messages = messages, list = pushes, most = most, most_bytes = most_bytes,
    drop_old = drop_old, numbers = numbers, others = {}, dropped = 0, expired = 0, full = {},
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
      redis.call('HSET', prefix .. 'subs:' .. cid, filter, record[5] .. ';' .. record[6])
    else
      redis.call('HDEL', prefix .. 'subs:' .. cid, filter)
    end
    if is_group(filter) then
      attempt(prefix, GROUP, filter, kind == 'subscribed' and join_group or leave_group, prefix, filter, 'c:' .. cid)
    end
  elseif kind == 'route' then
    redis.call('HSET', prefix .. 'routes:' .. node, name, table.concat(record, ' ', 3))
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
    job.slim[#job.slim + 1] = is_value and {'outdated', record[2]} or record
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
-- `sent`: messages with lower numbers may have been sent; '' = the client was never admitted. `interval`: its Session
-- Expiry Interval in seconds, '' = as configured. `delay`: of its will in seconds, '' = no will waits. `told`: what
-- nodes have to be sent.
local function release(prefix, node, told, cid, epoch, sent, interval, delay)
  redis.call('SREM', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'p', 'w', 'n', 'x', 'i')
  if delay ~= '' then
    delay_will(prefix, node, cid, epoch, delay, state)
  end
  if not state[2] then
    return
  end
  local of_this_life, was_admitted = epoch >= tonumber(state[6]), sent ~= ''
  if was_admitted and of_this_life then
    held.drop(prefix, cid, epoch)
  end
  local first_unsent = math.max(of_this_life and was_admitted and sent or 0, tonumber(state[5]))
  if tonumber(state[2]) == epoch then
    local seconds = state[7] or ''
    if was_admitted and seconds ~= '0' then      -- [5: 3.14.2.2.2]; or an operator has ended the session
      seconds = interval == '' and '' or string.format('%.0f', interval)
    end
    redis.call('HSET', key, 'o', '', 'n', first_unsent, 'i', seconds)
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

-- A QoS 2 message is received, and awaits PUBREL; or it is released, and a part of its receivers have it.
local function await(i, job)
  local item = job.list[i]
  if lives(job.prefix, item[1], item[2]) then
    local message = job.messages[item[4]]
    if item[5] > 0 then
      message = struct.pack('<BI4', PROGRESS, item[5]) .. message
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

-- 'settled': a will is published, or discarded; 'progress': a part of its receivers have it; 'dropped': it is held, and
-- its client is admitted.
local function settle_will(prefix, node, step, epoch, progress)
  local key, id = prefix .. 'wills:' .. node, string.format('%.0f', epoch)
  if step == 'settled' then
    redis.call('HDEL', key, id)
  elseif step == 'dropped' then
    redis.pcall('HDEL', prefix .. 'delayed:wills', id)
  else
    local stored = redis.call('HGET', key, id)
    if stored then
      redis.call('HSET', key, id, wills.with_progress(stored, progress))
    end
  end
end

-- The keys of a node, and those of all, that a block needs beside those of clients and groups.
local CHANGES = {kind = 'common', 'changes', 'stream', 'change', 'string', 'retained', 'hash'}
local LATER = {kind = 'common', 'later', 'zset', 'later:messages', 'hash', 'later:state', 'hash',
  'later:tenants', 'hash', 'epoch', 'string'}

-- Why nothing of a block can be applied, or nil. Reads only.
local function obstacle_of(prefix, node, has_wills, changes, has_later)
  local key, reason
  if has_wills then
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
  if not key and has_later then
    key, reason = wrong_key(prefix, LATER, '')
  end
  return key and refusal(key, reason)
end

-- Add a batch to the log of the node, for nodes that are away. Returns an error if the log is damaged.
local function add_batch(prefix, node, seq, targets, batch, oldest)
  local names = {}
  for i = 1, #targets do
    names[i] = targets[i][1]
  end
  local key = prefix .. 'log:' .. node
  local last = tonumber(redis.pcall('HGET', prefix .. 'clock', 'l') or 0)
  local order = string.format('%.0f', (last or 0) + 1)           -- begins again if that is damaged
  local added = redis.pcall('XADD', key, 'MINID', '~', oldest, seq .. '-0', 'b', batch,
    't', ' ' .. table.concat(names, ' ') .. ' ', 'o', order)
  if type(added) == 'table' and added.err then
    return refusal(key, added.err)
  end
  redis.pcall('HSET', prefix .. 'clock', 'l', order)
end

-- The messages, the entry and the batch are arguments, not parts of the block: unpacking copies the parts of a block,
-- and Lua hashes each byte of a new text.
register('commit', {}, function(prefix, node, seq, block, max_messages, max_bytes, drop_oldest, oldest_batch, entry_id,
    log_entry, oldest_entry, batch)
  local last, number = seq_of(prefix, node), tonumber(seq)
  if not last then
    return {'gone'}
  end
  if number <= last then
    return {'again'}
  end
  if number ~= last + 1 then
    return {'gap', last}
  end
  -- What may fail as a whole does so before anything is written.
  local pushes, header, targets, changes, awaiting, released, settled, releases, group_limits, shares, moves, closed,
    checks, later, limits = unpack(cmsgpack.unpack(block))
  local messages = arguments
  local obstacle = entry_id ~= '' and log_obstacle(prefix, node, entry_id, log_entry)
  if obstacle == 'gap' then
    return {'gap', last}
  end
  limits = limits[1] and tenants.limits(limits)
  local records = changes ~= '' and cmsgpack.unpack(changes)
  local refused = obstacle_of(prefix, node, settled[1], changes, later[1])
  if not refused and entry_id ~= '' and not obstacle then
    refused = add_log_entry(prefix, node, entry_id, log_entry, oldest_entry)
  end
  if not refused and batch ~= '' then
    refused = add_batch(prefix, node, seq, targets, batch, oldest_batch)
  end
  if refused then
    return refused
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', number)
  local told = nothing_told()
  local numbers, dropped, full, expired, number_of_change = {}, 0, NOTHING, 0, 0
  if awaiting[1] then
    each(#awaiting, await, client_failed, {prefix = prefix, list = awaiting, messages = messages})
  end
  if released[1] then
    each(#released, await_no_more, client_failed, {prefix = prefix, list = released})
  end
  for i = 1, #settled, 3 do
    settle_will(prefix, node, unpack(settled, i, i + 2))
  end
  local waiting = NOTHING
  if moves[1] or closed[1] then
    waiting = move(prefix, node, messages, moves, closed, told)
  end
  if pushes[1] then
    dropped, full, expired = push(prefix, node, messages, pushes, tonumber(max_messages), tonumber(max_bytes),
      drop_oldest == '1', numbers, limits)
  end
  if batch ~= '' then
    for i = 1, #targets do
      local target = targets[i]
      publish(prefix .. 'to:' .. target[1], target[2] == '' and batch or header .. target[2])
    end
  end
  if records then
    local fine, found = attempt(prefix, CHANGES, '', apply, prefix, node, changes, records)
    number_of_change = fine and found or 0
  end
  if releases[1] then
    each(#releases, release_one, client_failed, {prefix = prefix, node = node, list = releases, told = told})
  end
  dispatch_all(prefix, waiting, told)
  dispatch_all(prefix, woken, told)
  if shares[1] then
    local more_dropped, more_expired = share(prefix, messages, shares, group_limits, told, limits)
    dropped, expired = dropped + more_dropped, expired + more_expired
  end
  if later[1] then
    attempt(prefix, LATER, '', delay_messages, prefix, messages, later)
  end
  local leases, totals, given = tell_all(prefix, node, told)
  if checks[1] then
    check_keys(prefix, node, checks)
  end
  return {'ok', number_of_change, dropped, expired, numbers, full, leases, totals, given, damaged}
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
  if size == '' or #done ~= head - first then
    size = nil                                   -- not known, or also of others
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

register('acks', {'allow-oom'}, function(prefix, node, acks, settled)
  if not live(prefix, node) then
    return {'gone'}
  end
  count_call(prefix, node)
  local list, told = cmsgpack.unpack(acks), nothing_told()
  each(#list, acknowledge, client_failed, {prefix = prefix, list = list})
  if settled ~= '' then
    settle(prefix, node, cmsgpack.unpack(settled), told)
  end
  dispatch_all(prefix, woken, told)
  local leases, totals, given = tell_all(prefix, node, told)
  return {'ok', leases, totals, given, damaged}
end)
