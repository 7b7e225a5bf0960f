#!lua name=flockmq1
-- revision 1
-- The atomic steps of a cluster. Loaded into Redis by every node that starts; the protocol is in deploy/docs/CLUSTER.md.
--
-- Every function takes the key prefix as its first argument. What changes the truth checks that the caller is a live
-- node: one that was declared dead gets {'gone'} and nothing happens. Texts between nodes are MessagePack; the first
-- element says what it is.

local KEPT_CHANGES = 100000   -- entries of the stream of changes: a node that is further behind starts anew
local AT_ONCE = 1000          -- values that one command takes: Lua's stack is small
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

local function each(values, act)
  for i = 1, #values, AT_ONCE do
    act(unpack(values, i, math.min(i + AT_ONCE - 1, #values)))
  end
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
    local state = redis.call('HMGET', key, 'o', 'x', 'h', 'b')
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
          while length > most or (bytes > most_bytes and length > 1) do
            bytes = bytes - #redis.call('LPOP', queue)
            redis.call('HDEL', prefix .. 'st:' .. cid, head)
            head = head + 1
            length = length - 1
            dropped = dropped + 1
          end
          redis.call('HSET', key, 'h', head)
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
  local state = redis.call('HMGET', key, 'o', 'e', 'p', 'w', 'n')
  if not state[2] then
    return
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

-- args: prefix, node, seq, block, most queued messages, most queued bytes, 1 = drop the oldest, oldest seq to keep
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
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', seq)
  local block = cmsgpack.unpack(args[4])
  local messages, pushes, log, header, targets, changes, awaiting, released, wills, releases = unpack(block)
  local firsts = {0, 0}
  for i = 1, #awaiting do
    local item = awaiting[i]
    redis.call('HSET', prefix .. 'in:' .. item[1], item[2], messages[item[3]])
  end
  for i = 1, #released do
    redis.call('HDEL', prefix .. 'in:' .. released[i][1], released[i][2])
  end
  for i = 1, #wills do
    redis.call('HDEL', prefix .. 'wills:' .. node, string.format('%.0f', wills[i]))
  end
  if #pushes > 0 then
    firsts[2] = push(prefix, node, messages, pushes, tonumber(args[5]), tonumber(args[6]), args[7] == '1', firsts)
  end
  if log ~= '' then
    redis.call('XADD', prefix .. 'log:' .. node, 'MINID', '~', args[8] .. '-0', args[3] .. '-0', 'b', log)
    for i = 1, #targets do
      local target = targets[i]
      redis.call('PUBLISH', prefix .. 'to:' .. target[1], header .. (target[2] == '' and log or target[2]))
    end
  end
  if changes ~= '' then
    firsts[1] = apply(prefix, node, changes)
  end
  for i = 1, #releases do
    release(prefix, node, releases[i][1], releases[i][2], releases[i][3])
  end
  return firsts
end)

-- Acknowledgements of clients: {client id, done numbers ascending, numbers with PUBREC}. These free memory, so they
-- pass when Redis has none left; doing one again does no harm.
redis.register_function{function_name = 'flockmq_acks', flags = {'allow-oom'}, callback = function(_, args)
  local prefix = args[1]
  if not live(prefix, args[2]) then
    return {'gone'}
  end
  local list = cmsgpack.unpack(args[3])
  for i = 1, #list do
    local cid, done, received = unpack(list[i])
    local key, states = prefix .. 's:' .. cid, prefix .. 'st:' .. cid
    local state = redis.call('HMGET', key, 'h', 'b', 'z')
    if state[1] then
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

local function load(prefix, cid, from, count)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'h', 'n')
  local head = tonumber(state[1] or 1)
  from = math.max(from, head)
  return {head, tonumber(state[2] or 1), from,
    redis.call('LRANGE', prefix .. 'q:' .. cid, from - head, from - head + count - 1),
    redis.call('HGETALL', prefix .. 'st:' .. cid), redis.call('HGETALL', prefix .. 'in:' .. cid)}
end

-- The node that had the client is dead: whatever is in the queue may have been sent.
local function all_sent(prefix, cid)
  local key = prefix .. 's:' .. cid
  redis.call('HSET', key, 'n', tonumber(redis.call('HGET', key, 'h')) + redis.call('LLEN', prefix .. 'q:' .. cid))
end

-- args: prefix, node, client id, 1 = persistent, protocol level, will or nothing, most sessions
-- Returns {epoch, 1 = the session was there, its incarnation, epochs and nodes to wait for, fights, will to be
-- published first or nothing}, or {'gone'} or {'full'}.
redis.register_function('flockmq_claim', function(_, args)
  local prefix, node, cid, persistent = args[1], args[2], args[3], args[4]
  if not live(prefix, node) then
    return {'gone'}
  end
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'x', 'p', 'w', 'f', 't')
  local owner, last, incarnation = state[1], state[2], state[3]
  if not last and persistent == '1' and redis.call('ZCARD', prefix .. 'sessions') >= tonumber(args[7]) then
    return {'full'}
  end
  local epoch = redis.call('INCR', prefix .. 'epoch')
  local waits, waited, old_will = '', {}, ''
  for old, where in (state[5] or ''):gmatch('([^=,]+)=([^,]*),') do
    if live(prefix, where) then
      waits = waits .. old .. '=' .. where .. ','
      waited[#waited + 1] = tonumber(old)
      waited[#waited + 1] = where
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
      all_sent(prefix, cid)
    end
  end
  if old_will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, last, old_will)
  end
  local present = last and persistent == '1' and state[4] == '1'
  if present then
    redis.call('HSET', key, 'o', node, 'e', epoch, 'l', args[5], 'w', waits, 'f', fights, 't', seconds)
  else
    if last then
      end_session(prefix, '', cid, incarnation, state[4])
    end
    incarnation = epoch
    redis.call('HSET', key, 'o', node, 'e', epoch, 'x', epoch, 'p', persistent, 'l', args[5], 'h', 1, 'b', 0, 'n', 1,
      'z', 0, 'w', waits, 'f', fights, 't', seconds)
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
-- Returns {head, sent below, number of the first entry, entries, states, awaited}.
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

-- args: prefix, node, client id, epoch that the node knows, 0 = none. The node's connection was lost before the answer
-- to a claim came: whatever the claim made is given up.
redis.register_function{function_name = 'flockmq_disown', flags = {'allow-oom'}, callback = function(_, args)
  local prefix, node, cid = args[1], args[2], args[3]
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e')
  if state[1] == node and state[2] ~= args[4] then
    redis.call('HDEL', prefix .. 'wills:' .. node, state[2])
    release(prefix, node, cid, tonumber(state[2]), 0)
  end
  return 'ok'
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
