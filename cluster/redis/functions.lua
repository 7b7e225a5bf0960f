#!lua name=flockmq1
-- revision 7
-- The atomic steps of a cluster. Loaded into Redis by every node that starts; the protocol is in deploy/docs/CLUSTER.md.
--
-- Every function takes the key prefix as its first argument. What changes the truth checks that the caller is a live
-- node: one that was declared dead gets {'gone'} and nothing happens. Texts between nodes are MessagePack; the first
-- element says what it is.

local KEPT_CHANGES = 100000   -- entries of the stream of changes: a node that is further behind starts anew
local AT_ONCE = 1000          -- values that one command takes: Lua's stack is small
local AT_ONCE_BYTES = 524288  -- what one reply has of messages: Redis closes a subscriber that 32 MB wait for
local FLAP_SECONDS = 10       -- take-overs of a session count as fighting when they follow each other within this

local function live(prefix, node)
  return redis.call('HEXISTS', prefix .. 'nodes', node) == 1
end

local function tell(prefix, node, ...)
  redis.call('PUBLISH', prefix .. 'to:' .. node, cmsgpack.pack({...}))
end

local function now()
  return tonumber(redis.call('TIME')[1])
end

-- Give the changes of a block one number, keep them, tell every node. `kept` is what the stream holds: values of
-- retained messages are in the hash, and need not be there a second time.
local function change(prefix, origin, block, kept)
  local number = redis.call('INCR', prefix .. 'change')
  redis.call('XADD', prefix .. 'changes', 'MAXLEN', '~', KEPT_CHANGES, string.format('%.0f-0', number), 'o', origin,
    'b', kept or block)
  redis.call('PUBLISH', prefix .. 'all', cmsgpack.pack({'changes', number, origin, block}))
  return number
end

local function forget(prefix, cid)
  redis.call('DEL', prefix .. 's:' .. cid, prefix .. 'q:' .. cid, prefix .. 'st:' .. cid, prefix .. 'in:' .. cid,
    prefix .. 'subs:' .. cid)
  redis.call('ZREM', prefix .. 'sessions', cid)
end

-- A session ends: forget it, and say so if others may know subscriptions of it.
local function end_session(prefix, origin, cid, incarnation, persistent)
  forget(prefix, cid)
  if persistent == '1' then
    return change(prefix, origin, cmsgpack.pack({{'ended', cid, tonumber(incarnation)}}))
  end
  return 0
end

-- ---- commits ----

local function push(prefix, node, messages, pushes, most, most_bytes, drop_old, firsts)
  local others = {}
  local dropped = 0
  for number = 1, #pushes do
    local item = pushes[number]
    local cid, incarnation = item[1], item[2]
    local key = prefix .. 's:' .. cid
    local state = redis.call('HMGET', key, 'o', 'x', 'h', 'b', 'z')
    local owner = state[1]
    local first, count = 0, #item - 2
    if state[2] and tonumber(state[2]) == incarnation then
      local queue = prefix .. 'q:' .. cid
      local head, bytes = tonumber(state[3]), tonumber(state[4])
      local values, length = {}, 0
      for i = 3, #item do
        local value = messages[item[i]]
        values[i - 2] = value
        bytes = bytes + #value
      end
      for i = 1, #values, AT_ONCE do
        length = redis.call('RPUSH', queue, unpack(values, i, math.min(i + AT_ONCE - 1, #values)))
      end
      if length > most or (bytes > most_bytes and length > 1) then
        if drop_old and owner == '' then
          local marks = tonumber(state[5])
          while length > most or (bytes > most_bytes and length > 1) do
            bytes = bytes - #redis.call('LPOP', queue)
            if marks > 0 then
              marks = marks - redis.call('HDEL', prefix .. 'st:' .. cid, head)
            end
            head = head + 1
            length = length - 1
            dropped = dropped + 1
          end
          redis.call('HSET', key, 'h', head, 'z', marks)
          count = math.min(count, length)
        elseif not (drop_old and length <= 2 * most and bytes <= 2 * most_bytes) then
          while count > 0 and (length > most or (bytes > most_bytes and length > 1)) do
            bytes = bytes - #redis.call('RPOP', queue)
            length = length - 1
            count = count - 1
            dropped = dropped + 1
          end
        end
      end
      redis.call('HSET', key, 'b', bytes)
      if count > 0 then
        first = head + length - count
        if owner ~= node and owner ~= '' then
          local told = others[owner]
          if not told then
            told = {at = {}, messages = {}, items = {}}
            others[owner] = told
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
        end
      end
    end
    firsts[#firsts + 1] = owner == node and first or 0
    firsts[#firsts + 1] = count
  end
  for owner, told in pairs(others) do
    tell(prefix, owner, 'pushed', told.messages, told.items)
  end
  return dropped
end

-- What a block changes for all: sets the truth, and returns the number of the change, 0 when nothing is left of it.
local function apply(prefix, node, block)
  local kept, slim = {}, {}
  local has_values = false
  local list = cmsgpack.unpack(block)
  for i = 1, #list do
    local record = list[i]
    local kind, valid = record[1], true
    if kind == 'subscribed' or kind == 'unsubscribed' then
      local cid = record[2]
      valid = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x') or -1) == record[3]
      if valid and kind == 'subscribed' then
        redis.call('HSET', prefix .. 'subs:' .. cid, record[4], record[5])
      elseif valid then
        redis.call('HDEL', prefix .. 'subs:' .. cid, record[4])
      end
    elseif kind == 'route' then
      redis.call('HSET', prefix .. 'routes:' .. node, record[2], record[3])
    elseif kind == 'unroute' then
      redis.call('HDEL', prefix .. 'routes:' .. node, record[2])
    elseif kind == 'retained' then
      has_values = true
      if record[3] == '' then
        redis.call('HDEL', prefix .. 'retained', record[2])
      else
        redis.call('HSET', prefix .. 'retained', record[2], record[3])
      end
    end
    if valid then
      kept[#kept + 1] = record
      slim[#slim + 1] = kind == 'retained' and {kind, record[2]} or record
    end
  end
  if #kept == 0 then
    return 0
  end
  if #kept < #list then
    block = cmsgpack.pack(kept)
  end
  return change(prefix, node, block, has_values and cmsgpack.pack(slim) or block)
end

-- A node has closed a connection: the session is offline, or gone, or already claimed by another, who waits to hear it.
local function release(prefix, node, cid, epoch, sent)
  redis.call('SREM', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'p', 'w', 'n', 'x')
  if not state[2] then
    return
  end
  if epoch < tonumber(state[6]) then
    sent = 0     -- in an earlier life of the session
  end
  if tonumber(state[2]) == epoch then
    if state[3] == '1' then
      redis.call('HSET', key, 'o', '', 'n', math.max(sent, tonumber(state[5])))
      redis.call('ZADD', prefix .. 'sessions', now(), cid)
    else
      forget(prefix, cid)
    end
    return
  end
  local waits = ''
  for old, where in state[4]:gmatch('([^=,]+)=([^,]*),') do
    if tonumber(old) ~= epoch then
      waits = waits .. old .. '=' .. where .. ','
    end
  end
  redis.call('HSET', key, 'w', waits, 'n', math.max(sent, tonumber(state[5])))
  if state[1] ~= '' then
    tell(prefix, state[1], 'released', cid, epoch)
  end
end

-- Why an entry of the log of messages can't be added, if so: it is there already, or what came before it is not. An id
-- counts the bytes of all blocks up to its own.
local function hindrance(prefix, node, id, block)
  local logged = tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'logged') or 0)
  local total = tonumber(id:match('%d+$'))
  if total <= logged then
    return 'again'
  end
  if total - #block ~= logged then
    return 'gap'
  end
end

local function log_entry(prefix, node, id, block, oldest)
  redis.call('XADD', prefix .. 'analytics:log:' .. node, 'MINID', '~', oldest, id, 'b', block)
  redis.call('HSET', prefix .. 'node:' .. node, 'logged', id:match('%d+$'))
end

-- args: prefix, node, id of an entry of the log of messages, the entry, the oldest entry to keep: one that no commit takes.
redis.register_function('flockmq_logged', function(_, args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  local hindered = hindrance(prefix, node, args[3], args[4])
  if not hindered then
    log_entry(prefix, node, args[3], args[4], args[5])
  end
  return {hindered or 'ok'}
end)

-- args: prefix, node, bytes of its log of messages that Redis had confirmed. If it has lost some of them since, as when a
-- replica takes over, the log goes on after the gap, which readers see.
redis.register_function('flockmq_log_from', function(_, args)
  local key = args[1] .. 'node:' .. args[2]
  if live(args[1], args[2]) and tonumber(redis.call('HGET', key, 'logged') or 0) < tonumber(args[3]) then
    redis.call('HSET', key, 'logged', args[3])
  end
  return 'ok'
end)

-- args: prefix, node, seq, block, most queued messages, most queued bytes, 1 = drop the oldest, oldest entry of the log
-- to keep; for the log of messages: id of an entry, the entry, the oldest entry to keep. (An argument of its own: what
-- is inside of the block is copied once more.)
redis.register_function('flockmq_commit', function(_, args)
  local prefix, node, seq = args[1], args[2], tonumber(args[3])
  local last = redis.call('HGET', prefix .. 'node:' .. node, 'seq')
  if not last then
    return {'gone'}
  end
  last = tonumber(last)
  if seq <= last then
    return {'again'}
  end
  if seq ~= last + 1 then
    return {'gap', last}
  end
  local hindered = args[9] and hindrance(prefix, node, args[9], args[10])
  if hindered == 'gap' then
    return {'gap', last}
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', seq)
  local block = cmsgpack.unpack(args[4])
  local messages, pushes, log, header, targets, changes, awaiting, released, wills, releases = unpack(block)
  local firsts = {0, 0}
  local incarnations = {}
  local function lives(cid, incarnation)
    local found = incarnations[cid]
    if not found then
      found = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x') or 0)
      incarnations[cid] = found
    end
    return found == incarnation
  end
  for i = 1, #awaiting do
    local item = awaiting[i]
    if lives(item[1], item[2]) then
      redis.call('HSET', prefix .. 'in:' .. item[1], item[3], messages[item[4]])
    end
  end
  for i = 1, #released do
    local item = released[i]
    if lives(item[1], item[2]) then
      redis.call('HDEL', prefix .. 'in:' .. item[1], item[3])
    end
  end
  for i = 1, #wills do
    redis.call('HDEL', prefix .. 'wills:' .. node, string.format('%.0f', wills[i]))
  end
  if #pushes > 0 then
    firsts[2] = push(prefix, node, messages, pushes, tonumber(args[5]), tonumber(args[6]), args[7] == '1', firsts)
  end
  if log ~= '' then
    local names = {}
    for i = 1, #targets do
      names[i] = targets[i][1]
    end
    redis.call('XADD', prefix .. 'log:' .. node, 'MINID', '~', args[8], args[3] .. '-0', 'b', log,
      't', ' ' .. table.concat(names, ' ') .. ' ')
    for i = 1, #targets do
      local target = targets[i]
      redis.call('PUBLISH', prefix .. 'to:' .. target[1], header .. (target[2] == '' and log or target[2]))
    end
  end
  if args[9] and not hindered then
    log_entry(prefix, node, args[9], args[10], args[11])
  end
  if changes ~= '' then
    firsts[1] = apply(prefix, node, changes)
  end
  for i = 1, #releases do
    release(prefix, node, releases[i][1], releases[i][2], releases[i][3])
  end
  return firsts
end)

-- Acknowledgements of clients: {client id, incarnation, done numbers, numbers with PUBREC}. These free memory, so they
-- pass when Redis has none left; doing one again does no harm.
redis.register_function{function_name = 'flockmq_acks', flags = {'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  if not live(prefix, args[2]) then
    return {'gone'}
  end
  local list = cmsgpack.unpack(args[3])
  for i = 1, #list do
    local cid, incarnation, done, received = unpack(list[i])
    local key, states = prefix .. 's:' .. cid, prefix .. 'st:' .. cid
    local state = redis.call('HMGET', key, 'h', 'b', 'z', 'x')
    if state[1] and tonumber(state[4]) == incarnation then
      local head, bytes, marks = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
      for j = 1, #received do
        if received[j] >= head then
          marks = marks + redis.call('HSET', states, received[j], 'r')
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
          marks = marks + redis.call('HSET', states, waiting[j], 'd')
        end
      end
      if marks > 0 then
        for number = first, head - 1 do
          marks = marks - redis.call('HDEL', states, number)
        end
        while marks > 0 and redis.call('HGET', states, head) == 'd' do
          marks = marks - redis.call('HDEL', states, head)
          head = head + 1
        end
      end
      if head > first then
        for _, value in ipairs(redis.call('LPOP', prefix .. 'q:' .. cid, head - first) or {}) do
          bytes = bytes - #value
        end
      end
      redis.call('HSET', key, 'h', head, 'b', bytes, 'z', marks)
    end
  end
  return {'ok'}
end}

-- ---- sessions ----

-- Entries of a queue from the number `from` on, as many as one reply should have.
local function entries(queue, head, from, count, bytes)
  local start = from - head
  if bytes <= AT_ONCE_BYTES then
    return redis.call('LRANGE', queue, start, start + count - 1)
  end
  local found, size = {}, 0
  while #found < count and size < AT_ONCE_BYTES do
    local value = redis.call('LINDEX', queue, start + #found)
    if not value then
      break
    end
    found[#found + 1] = value
    size = size + #value
  end
  return found
end

local function load(prefix, cid, from, count)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'h', 'n', 'b')
  local head = tonumber(state[1] or 1)
  local queue = prefix .. 'q:' .. cid
  from = math.max(from, head)
  local found = entries(queue, head, from, count, tonumber(state[3] or 0))
  local tail = head + redis.call('LLEN', queue)
  local last = from + #found >= tail
  return {head, tonumber(state[2] or 1), from, found, tail,
    last and redis.call('HGETALL', prefix .. 'st:' .. cid) or {},
    last and redis.call('HGETALL', prefix .. 'in:' .. cid) or {}}
end

-- The node that had the client is dead: whatever is in the queue may have been sent.
local function all_sent(prefix, cid)
  local key = prefix .. 's:' .. cid
  redis.call('HSET', key, 'n', tonumber(redis.call('HGET', key, 'h')) + redis.call('LLEN', prefix .. 'q:' .. cid))
end

-- args: prefix, node, client id, 1 = persistent, protocol level, will or nothing, most sessions, verified user or nothing
-- Returns {epoch, 1 = the session was there, its incarnation, epochs and nodes to wait for, fights, will to be
-- published first or nothing}, or {'gone'} or {'full'}, or {'denied'}: the session is another user's.
redis.register_function('flockmq_claim', function(_, args)
  local prefix, node, cid, persistent = args[1], args[2], args[3], args[4]
  if not live(prefix, node) then
    return {'gone'}
  end
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'x', 'p', 'w', 'f', 't', 'u')
  local owner, last, incarnation = state[1], state[2], state[3]
  local user = args[8] or ''                     -- a node of before had no users
  if (state[8] or '') ~= '' and state[8] ~= user then
    return {'denied'}
  end
  if not last and persistent == '1' and redis.call('ZCARD', prefix .. 'sessions') >= tonumber(args[7]) then
    return {'full'}
  end
  local epoch = redis.call('INCR', prefix .. 'epoch')
  local waits, waited, old_will, died = '', {}, '', false
  for old, where in (state[5] or ''):gmatch('([^=,]+)=([^,]*),') do
    if live(prefix, where) then
      waits = waits .. old .. '=' .. where .. ','
      waited[#waited + 1] = tonumber(old)
      waited[#waited + 1] = where
      tell(prefix, where, 'taken', cid, tonumber(old))      -- once more: it may have had no link
    else
      died = true
    end
  end
  local fights, seconds = tonumber(state[6] or 0), now()
  if last and owner ~= '' then
    if math.abs(seconds - tonumber(state[7])) < FLAP_SECONDS then fights = fights + 1 else fights = 0 end
    if live(prefix, owner) then
      waits = waits .. last .. '=' .. owner .. ','
      waited[#waited + 1] = tonumber(last)
      waited[#waited + 1] = owner
      tell(prefix, owner, 'taken', cid, tonumber(last))
    else
      old_will = redis.call('HGET', prefix .. 'wills:' .. owner, last) or ''
      redis.call('HDEL', prefix .. 'wills:' .. owner, last)
      died = true
    end
  end
  if died then
    all_sent(prefix, cid)
  end
  if old_will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, last, old_will)
  end
  local present = last and persistent == '1' and state[4] == '1'
  if present then
    redis.call('HSET', key, 'o', node, 'e', epoch, 'l', args[5], 'w', waits, 'f', fights, 't', seconds, 'u', user)
  else
    if last then
      end_session(prefix, '', cid, incarnation, state[4])
    end
    incarnation = epoch
    redis.call('HSET', key, 'o', node, 'e', epoch, 'x', epoch, 'p', persistent, 'l', args[5], 'h', 1, 'b', 0, 'n', 1,
      'z', 0, 'w', waits, 'f', fights, 't', seconds, 'u', user)
  end
  if persistent == '1' then
    redis.call('ZADD', prefix .. 'sessions', seconds, cid)
  end
  redis.call('SADD', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  if args[6] ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, args[6])
  end
  return {epoch, present and 1 or 0, tonumber(incarnation), waited, fights, old_will, tonumber(last or 0)}
end)

-- args: prefix, client id, first queue number, most entries
-- Returns {head, sent below, number of the first entry, entries, number of the next that will come, states, awaited};
-- the last two only when there are no more entries.
redis.register_function{function_name = 'flockmq_load', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  return load(args[1], args[2], tonumber(args[3]), tonumber(args[4]))
end}

-- args: prefix, node, then client id and tail (the next queue number it knows) in turn
-- Returns the client ids whose queues have more.
redis.register_function{function_name = 'flockmq_behind', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local prefix, found = args[1], {}
  for i = 3, #args, 2 do
    local cid = args[i]
    local head = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'h') or 0)
    if head + redis.call('LLEN', prefix .. 'q:' .. cid) > tonumber(args[i + 1]) then
      found[#found + 1] = cid
    end
  end
  return found
end}

-- args: prefix, node, cursor, count. What Redis thinks that the node has, for one that had no link for a while.
-- Returns {cursor, client id, epoch, 1 = somebody else has claimed the session since, ...}.
redis.register_function{function_name = 'flockmq_owned', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  local found = redis.call('SSCAN', prefix .. 'owned:' .. args[2], args[3], 'COUNT', args[4])
  local result = {found[1]}
  for i = 1, #found[2] do
    local cid, epoch = found[2][i]:match('^(.*)%z([^%z]*)$')
    result[#result + 1] = cid
    result[#result + 1] = tonumber(epoch)
    result[#result + 1] = redis.call('HGET', prefix .. 's:' .. cid, 'e') == epoch and 0 or 1
  end
  return result
end}

redis.register_function('flockmq_kick', function(_, args)
  local prefix, cid = args[1], args[2]
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e')
  if not state[2] then
    return 'not found'
  end
  if state[1] == '' or not live(prefix, state[1]) then
    return 'not connected'
  end
  tell(prefix, state[1], 'kick', cid)
  return 'told ' .. state[1]
end)

-- Ends a session; one that is connected is kicked first, and then is offline and can be purged.
redis.register_function('flockmq_purge', function(_, args)
  local prefix, cid = args[1], args[2]
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p', 'w')
  if not state[2] then
    return 'not found'
  end
  if state[1] ~= '' and live(prefix, state[1]) then
    tell(prefix, state[1], 'purge', cid)
    return 'told ' .. state[1]
  end
  end_session(prefix, '', cid, state[2], state[3])
  return 'purged'
end)

-- args: prefix, node, seconds, most. Ends persistent sessions whose client has been away that long.
redis.register_function{function_name = 'flockmq_expire', flags = {'allow-oom'}, callback = function(_, args)
  local prefix, seconds = args[1], now()
  local ended = 0
  for _, cid in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'sessions', '-inf', seconds - tonumber(args[3]), 'LIMIT', 0,
      args[4])) do
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p')
    if not state[2] then
      redis.call('ZREM', prefix .. 'sessions', cid)
    elseif state[1] == '' then
      end_session(prefix, '', cid, state[2], state[3])
      ended = ended + 1
    else
      redis.call('ZADD', prefix .. 'sessions', seconds, cid)   -- the time away begins when its end is noticed
      if not live(prefix, state[1]) then
        redis.call('HSET', prefix .. 's:' .. cid, 'o', '')
        all_sent(prefix, cid)
      end
    end
  end
  return ended
end}

-- args: prefix, cursor, count. Returns {cursor, {client id, incarnation, {filter, options, ...}}, ...}.
redis.register_function{function_name = 'flockmq_sessions', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  local found = redis.call('ZSCAN', prefix .. 'sessions', args[2], 'COUNT', args[3])
  local result = {found[1]}
  for i = 1, #found[2], 2 do
    local cid = found[2][i]
    local subs = redis.call('HGETALL', prefix .. 'subs:' .. cid)
    if #subs > 0 then
      result[#result + 1] = {cid, tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x')), subs}
    end
  end
  return result
end}

-- args: prefix, cursor, count. Returns {cursor, topic name, retained message, ...}; an empty message is to be asked for.
redis.register_function{function_name = 'flockmq_retained', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local found = redis.call('HSCAN', args[1] .. 'retained', args[2], 'COUNT', args[3])
  local result, size = {found[1]}, 0
  for i = 1, #found[2], 2 do
    local message = found[2][i + 1]
    size = size + #message
    result[#result + 1] = found[2][i]
    result[#result + 1] = size <= AT_ONCE_BYTES and message or ''
  end
  return result
end}

-- args: prefix, topic names. Returns their retained messages, empty = there is none; of the first of them, if it is much.
redis.register_function{function_name = 'flockmq_values', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local result, size = {}, 0
  for i = 2, #args do
    local message = redis.call('HGET', args[1] .. 'retained', args[i]) or ''
    result[#result + 1] = message
    size = size + #message
    if size > AT_ONCE_BYTES then
      break
    end
  end
  return result
end}

-- args: prefix, node, node whose log it is, first seq. Returns {seq to go on from, 1 = there is more, batches for the node}.
redis.register_function{function_name = 'flockmq_log', flags = {'no-writes', 'allow-oom'}, callback = function(_, args)
  local key, me, from = args[1] .. 'log:' .. args[3], ' ' .. args[2] .. ' ', args[4]
  local result, size = {0, 1}, 0
  for _ = 1, AT_ONCE do
    local entry = redis.call('XRANGE', key, from .. '-0', '+', 'COUNT', 1)[1]
    if not entry then
      result[2] = 0
      break
    end
    from = string.format('%.0f', tonumber(entry[1]:match('^%d+')) + 1)
    if entry[2][4]:find(me, 1, true) then
      result[#result + 1] = entry[2][2]
      size = size + #entry[2][2]
      if size > AT_ONCE_BYTES then
        break
      end
    end
  end
  result[1] = tonumber(from)
  return result
end}

-- ---- membership ----

-- args: prefix, node, layout, fields of the node's hash. Returns {number of the last change}, or {'layout', theirs}.
redis.register_function('flockmq_join', function(_, args)
  local prefix, node = args[1], args[2]
  redis.call('SETNX', prefix .. 'layout', args[3])
  local layout = redis.call('GET', prefix .. 'layout')
  if layout ~= args[3] then
    return {'layout', layout}
  end
  redis.call('HSET', prefix .. 'nodes', node, 1)
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', 0, 'state', 'joining', unpack(args, 4))
  return {tonumber(redis.call('GET', prefix .. 'change') or 0)}
end)

-- The node has read everything, and from now on is waited for. Returns {number of the change, node, seq, ...}.
redis.register_function('flockmq_ready', function(_, args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'state', 'ready')
  local result = {change(prefix, node, cmsgpack.pack({{'ready', node}}))}
  for _, other in ipairs(redis.call('HKEYS', prefix .. 'nodes')) do
    result[#result + 1] = other
    result[#result + 1] = tonumber(redis.call('HGET', prefix .. 'node:' .. other, 'seq') or 0)
    result[#result + 1] = redis.call('HGET', prefix .. 'node:' .. other, 'state') or ''
  end
  return result
end)

-- args: prefix, node, fields. Returns {seq, last change, node, beats, ...}, or {'gone'}.
redis.register_function{function_name = 'flockmq_beat', flags = {'allow-oom'}, callback = function(_, args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  redis.call('HINCRBY', prefix .. 'nodes', node, 1)
  if #args > 2 then
    redis.call('HSET', prefix .. 'node:' .. node, unpack(args, 3))
  end
  local result = {tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'seq')),
    tonumber(redis.call('GET', prefix .. 'change') or 0)}
  for _, value in ipairs(redis.call('HGETALL', prefix .. 'nodes')) do
    result[#result + 1] = value
  end
  return result
end}

local function remove(prefix, node)
  redis.call('HDEL', prefix .. 'nodes', node)
  redis.call('DEL', prefix .. 'node:' .. node, prefix .. 'routes:' .. node, prefix .. 'wills:' .. node)
  redis.call('EXPIRE', prefix .. 'log:' .. node, 60)     -- others may still have to read it
  if redis.call('EXISTS', prefix .. 'owned:' .. node) == 1 then
    redis.call('SADD', prefix .. 'dead', node)
  end
  return change(prefix, '', cmsgpack.pack({{'left', node}}))
end

-- args: prefix, node, dead node, its beats as last seen. Declares it dead if it has not been heard of since.
-- Returns {epoch, will, ...}: those that the caller has to publish; the wills of clients that meanwhile are with another
-- node are given to that one.
redis.register_function{function_name = 'flockmq_bury', flags = {'allow-oom'}, callback = function(_, args)
  local prefix, node, dead = args[1], args[2], args[3]
  if not live(prefix, node) or redis.call('HGET', prefix .. 'nodes', dead) ~= args[4] then
    return {}
  end
  local result = {}
  local wills = redis.call('HGETALL', prefix .. 'wills:' .. dead)
  for i = 1, #wills, 2 do
    local epoch, will = wills[i], wills[i + 1]
    local length = struct.unpack('<H', will)
    local owner = redis.call('HGET', prefix .. 's:' .. will:sub(3, 2 + length), 'o')
    if owner and owner ~= '' and owner ~= dead and owner ~= node and live(prefix, owner) then
      redis.call('HSET', prefix .. 'wills:' .. owner, epoch, will)
      tell(prefix, owner, 'adopt', tonumber(epoch), will)
    else
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
      result[#result + 1] = tonumber(epoch)
      result[#result + 1] = will
    end
  end
  remove(prefix, dead)
  return result
end}

-- The node goes, having said all it has to say.
redis.register_function{function_name = 'flockmq_leave', flags = {'allow-oom'}, callback = function(_, args)
  if live(args[1], args[2]) then
    remove(args[1], args[2])
  end
  return 'ok'
end}

-- args: prefix, most. Marks sessions of dead nodes as offline, some at a time. Returns how many.
redis.register_function{function_name = 'flockmq_tidy', flags = {'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  local node = redis.call('SRANDMEMBER', prefix .. 'dead')
  if not node then
    return 0
  end
  local found = redis.call('SPOP', prefix .. 'owned:' .. node, args[2])
  for i = 1, #found do
    local cid = found[i]:match('^(.*)%z[^%z]*$')
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'p')
    if state[1] == node then
      if state[2] == '1' then
        redis.call('HSET', prefix .. 's:' .. cid, 'o', '')
        all_sent(prefix, cid)
        redis.call('ZADD', prefix .. 'sessions', now(), cid)
      else
        forget(prefix, cid)
      end
    end
  end
  if redis.call('EXISTS', prefix .. 'owned:' .. node) == 0 then
    redis.call('SREM', prefix .. 'dead', node)
  end
  return #found
end}

-- ---- the log of messages ----

local REMEMBERED = 30 * 86400000   -- milliseconds for which it is known that there was a log

-- The logs of nodes that are gone: trimmed by age, deleted when nothing is left.
redis.register_function{function_name = 'flockmq_tidy_logs', flags = {'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  local logs, time = prefix .. 'analytics:logs', redis.call('TIME')
  local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local known = redis.call('HGETALL', logs)
  for i = 1, #known, 2 do
    local node = known[i]
    local readable, log = pcall(cjson.decode, known[i + 1])
    local key = prefix .. 'analytics:log:' .. node
    if not readable or type(log) ~= 'table' or not log.seconds then
      redis.log(redis.LOG_WARNING, 'FlockMQ can not read what ' .. logs .. ' says of ' .. node)
    elseif log.ended then
      if ms - log.ended > REMEMBERED then
        redis.call('HDEL', logs, node)
      end
    elseif not live(prefix, node) then
      redis.call('XTRIM', key, 'MINID', string.format('%.0f', ms - log.seconds * 1000))
      if redis.call('XLEN', key) == 0 then
        log.last = '0-0'
        if redis.call('EXISTS', key) == 1 then
          local info = redis.call('XINFO', 'STREAM', key)
          for j = 1, #info, 2 do
            if info[j] == 'last-generated-id' then
              log.last = info[j + 1]
            end
          end
        end
        log.ended = ms
        redis.call('HSET', logs, node, cjson.encode(log))
        redis.call('DEL', key)
      end
    end
  end
  return 'ok'
end}

-- args: prefix, topic name below $SYS/analytics/, payload; empty = the result is gone. All nodes publish it.
redis.register_function('flockmq_result', function(_, args)
  local prefix, topic, payload = args[1], args[2], args[3]
  if payload == '' then
    redis.call('HDEL', prefix .. 'analytics:results', topic)
  else
    redis.call('HSET', prefix .. 'analytics:results', topic, payload)
  end
  redis.call('PUBLISH', prefix .. 'all', cmsgpack.pack({'result', topic, payload}))
  return 'ok'
end)
