-- Sessions: which node has them, their queues, their ends; and what a node reads when it joins or its link is back.

-- Entries of a queue from number `from` on, as many as one reply may have.
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
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'h', 'n', 'b', 'held')
  local head = tonumber(state[1] or 1)
  local queue = prefix .. 'q:' .. cid
  from = math.max(from, head)
  local found = entries(queue, head, from, count, tonumber(state[3] or 0))
  local tail = head + redis.call('LLEN', queue)
  local last = from + #found >= tail
  return {head, tonumber(state[2] or 1), from, found, tail,
    last and redis.call('HGETALL', prefix .. 'st:' .. cid) or {},
    last and redis.call('HGETALL', prefix .. 'in:' .. cid) or {}, held.parts(state[4]) or 0}
end

register('claim', {}, function(prefix, node, cid, persistent, level, will, max_sessions,
    user, clean_start, interval, without_redis)
  if not live(prefix, node) then
    return {'gone'}
  end
  local key = prefix .. 's:' .. cid
  local state = redis.pcall('HMGET', key, 'o', 'e', 'x', 'p', 'w', 'f', 't', 'u', 'i', 'd')
  if state.err then
    return refusal(key, state.err)
  end
  local owner, last, incarnation = state[1], state[2], state[3]
  if (state[8] or '') ~= '' and state[8] ~= user then
    return {'denied'}
  end
  if without_redis == '1' and (owner or '') ~= '' and owner ~= node and live(prefix, owner)
      and tonumber(last) > tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'epoch') or 0) then
    return {'taken'}                             -- after the node's last heartbeat with a link
  end
  -- A session without expiry ends with its connection, also if that is taken over.
  local present = last and clean_start == '0' and state[4] == '1' and not (owner ~= '' and state[9] == '0')
  if not last and persistent == '1' and redis.call('ZCARD', prefix .. 'sessions') >= tonumber(max_sessions) then
    return {'full'}
  end
  local epoch = redis.call('INCR', prefix .. 'epoch')
  count_call(prefix, node)
  local waits, waited, old_will, died = '', {}, '', 0   -- the last epoch whose node is dead
  for old, where in (state[5] or ''):gmatch('([^=,]+)=([^,]*),') do
    if live(prefix, where) then
      waits = waits .. old .. '=' .. where .. ','
      waited[#waited + 1] = tonumber(old)
      waited[#waited + 1] = where
      tell(prefix, where, 'taken', cid, tonumber(old))      -- repeated: the node may have had no link
    else
      died = math.max(died, tonumber(old))
    end
  end
  local fights, seconds = tonumber(state[6] or 0), now(prefix)
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
      if present and wills.delay_of(old_will) > 0 then
        old_will = ''
      end
      died = tonumber(last)
    end
  end
  if died > 0 then
    attempt(prefix, CLIENT, cid, earlier.has_died, prefix, cid, died)
  end
  if old_will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, last, old_will)
  end
  if (state[10] or '') ~= '' then
    -- The will of an ended connection waits for its delay: the client is back, or its session ends.
    local due = redis.call('ZSCORE', prefix .. 'delayed', state[10])
    local delayed = redis.call('HGET', prefix .. 'delayed:wills', state[10])
    redis.call('ZREM', prefix .. 'delayed', state[10])
    redis.call('HDEL', key, 'd')
    if present and delayed and due then
      held.hold(prefix, cid, tonumber(state[10]), due)
    elseif delayed then
      redis.call('HDEL', prefix .. 'delayed:wills', state[10])
      old_will, last = delayed, state[10]
      redis.call('HSET', prefix .. 'wills:' .. node, last, delayed)
    end
  end
  redis.call('ZREM', prefix .. 'expiring', cid)
  redis.call('ZREM', prefix .. 'grace', cid)
  if present then
    redis.call('HSET', key, 'o', node, 'e', epoch, 'l', level, 'w', waits, 'f', fights, 't', seconds, 'u', user,
      'i', interval)
  else
    if last then
      redis.call('HSET', key, 'e', epoch)          -- what it had of groups goes to others, not to its former connection
      end_session(prefix, '', cid, incarnation, state[4])
    end
    incarnation = epoch
    redis.call('HSET', key, 'o', node, 'e', epoch, 'x', epoch, 'p', persistent, 'l', level, 'h', 1,
      'b', 0, 'n', 1, 'z', 0, 'w', waits, 'f', fights, 't', seconds, 'u', user,
      'i', interval)
  end
  if persistent == '1' or present then
    redis.call('ZADD', prefix .. 'sessions', interval == '' and seconds or LATE, cid)
  end
  redis.call('SADD', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  if will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
  end
  return {'ok', epoch, present and 1 or 0, tonumber(incarnation), waited, fights, old_will, tonumber(last or 0)}
end)

register('load', {'no-writes', 'allow-oom'}, function(prefix, cid, first, most)
  local fine, result = attempt(prefix, CLIENT, cid, load, prefix, cid, tonumber(first), tonumber(most))
  return fine and result or refusal(damaged[3], damaged[4])
end)

register('behind', {'no-writes', 'allow-oom'}, function(prefix, node, ends)
  local list, found = cmsgpack.unpack(ends), {}
  each(#list / 2, function(i)
    local cid, expected = list[2 * i - 1], list[2 * i]
    local head = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'h') or 0)
    if head + redis.call('LLEN', prefix .. 'q:' .. cid) > expected then
      found[#found + 1] = cid
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, list[2 * i - 1], reason)
  end)
  return found
end)

register('lost', {'no-writes', 'allow-oom'}, function(prefix, node, ends)
  local list, found = cmsgpack.unpack(ends), {}
  each(#list / 3, function(i)
    local cid, incarnation, expected = unpack(list, 3 * i - 2, 3 * i)
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'x', 'h')
    if tonumber(state[1]) == incarnation
        and common_end(prefix, node, cid, incarnation, tonumber(state[2])) < expected then
      found[#found + 1] = cid
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, list[3 * i - 2], reason)
  end)
  return found
end)

local MAX_GAP = 65535         -- numbers that are filled with such entries: Redis executes nothing else meanwhile

-- Take back what Redis has lost of a queue. Messages that others have put there since get new numbers, behind it:
-- nobody has sent them, because the next node of the session waits until the caller has released it.
local function restore_one(i, job)
  local prefix, node = job.prefix, job.node
  local cid, incarnation, lost = unpack(job.list[i])
  local key, queue, states = prefix .. 's:' .. cid, prefix .. 'q:' .. cid, prefix .. 'st:' .. cid
  local tenant = tenants.of(cid)
  local state = redis.call('HMGET', key, 'x', 'o', 'w', 'h', 'b', 'z', 'n')
  if tonumber(state[1]) ~= incarnation
      or not (state[2] == node or (state[3] or ''):find('=' .. node .. ',', 1, true)) then
    return                                       -- another node may have sent what is there now
  end
  local head, before, marks = tonumber(state[4]), tonumber(state[5]), tonumber(state[6])
  local noted = queues.done(key, marks)
  local bytes, acked = before, noted
  local first = common_end(prefix, node, cid, incarnation, head)
  if lost[#lost][1] < first or lost[#lost][1] - first > MAX_GAP then
    return
  end
  local values, marked, number = {}, {}, first
  for j = 1, #lost do
    local wanted, entry = unpack(lost[j])
    while number <= wanted do
      local mark = number < wanted and 'd' or entry == '' and 'r'
      values[#values + 1] = mark and queues.NO_MESSAGE or entry
      bytes = bytes + queues.size_of(values[#values])
      if mark then
        marked[#marked + 1], marked[#marked + 2] = number, mark
        acked = acked + (mark == 'd' and 1 or 0)
      end
      number = number + 1
    end
    job.restored = job.restored + (wanted >= first and 1 or 0)
  end
  local at = math.max(first - head, 0)
  local others = redis.call('LRANGE', queue, at, -1)
  for j = 1, #others do
    if marks > 0 and redis.call('HDEL', states, head + at + j - 1) == 1 then
      marks, acked, bytes = marks - 1, acked - 1, bytes - queues.size_of(others[j])  -- it went back to its group
    else
      values[#values + 1] = others[j]
    end
  end
  if others[1] then
    redis.call('RPOP', queue, #others)
  end
  in_parts('RPUSH', queue, values)
  in_parts('HSET', states, marked, 2)
  redis.call('HSET', key, 'n', math.max(tonumber(state[7]), number))
  if noted_tails(prefix) and tails[key] then
    tails[key] = {incarnation, first + #values}  -- the node may repeat this call
  end
  head = math.min(head, first)
  if tenant then
    tenants.add(tenant, bytes - before)
  end
  queues.drop_done(prefix, tenant, cid, head, head, bytes, marks + #marked / 2, acked, noted)
end

register('restore', {'allow-oom'}, function(prefix, node, sessions)
  local job = {prefix = prefix, node = node, list = cmsgpack.unpack(sessions), restored = 0}
  if live(prefix, node) and not starts.are_missed(prefix, node) then
    each(#job.list, restore_one, client_failed, job)
  end
  return job.restored
end)

register('owned', {'no-writes', 'allow-oom'}, function(prefix, node, cursor, most)
  local found = redis.call('SSCAN', prefix .. 'owned:' .. node, cursor, 'COUNT', most)
  local claims = {}
  for i = 1, #found[2] do
    local cid, epoch = found[2][i]:match('^(.*)%z([^%z]*)$')
    claims[#claims + 1] = cid
    claims[#claims + 1] = tonumber(epoch)
    claims[#claims + 1] = redis.pcall('HGET', prefix .. 's:' .. cid, 'e') == epoch and 0 or 1
  end
  return {found[1], claims}
end)

register('kick', {}, function(prefix, cid)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e')
  if not state[2] then
    return {'unknown'}
  end
  if state[1] == '' or not live(prefix, state[1]) then
    return {'offline'}
  end
  tell(prefix, state[1], 'kick', cid)
  return {'sent', state[1]}
end)

register('purge', {}, function(prefix, cid)
  local readable, state = attempt(prefix, CLIENT, cid, redis.call, 'HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p', 'w')
  if not readable then
    forget(prefix, cid)
    return {'purged'}
  end
  if not state[2] then
    return {'unknown'}
  end
  if state[1] ~= '' and live(prefix, state[1]) then
    redis.call('HSET', prefix .. 's:' .. cid, 'i', 0)
    -- If its node dies, has no link, or has closed the connection just before, the session ends with its claim.
    tell(prefix, state[1], 'purge', cid)
    return {'sent', state[1]}
  end
  end_session(prefix, '', cid, state[2], state[3])
  return {'purged'}
end)

register('limit', {}, function(prefix, node, cid, limits)
  local key = prefix .. 's:' .. cid
  if live(prefix, node) and redis.call('HGET', key, 'x') then
    if limits == '' then
      redis.call('HDEL', key, 'm')
    else
      redis.call('HSET', key, 'm', limits)
    end
  end
  return {'ok'}
end)

register('expire', {'allow-oom'}, function(prefix, node, seconds, most)
  local ended, time = 0, now(prefix)
  if starts.rests(prefix, clock(prefix)) then
    return 0
  end
  local found = redis.call('ZRANGEBYSCORE', prefix .. 'sessions', '-inf', time - tonumber(seconds), 'LIMIT', 0,
    most)
  each(#found, function(i)
    local cid = found[i]
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p', 'i', 'e')
    if not state[2] then
      redis.call('ZREM', prefix .. 'sessions', cid)
    elseif (state[4] or '') ~= '' then
      redis.call('ZADD', prefix .. 'sessions', LATE, cid)
    elseif state[1] == '' then
      end_session(prefix, '', cid, state[2], state[3])
      ended = ended + 1
    else
      redis.call('ZADD', prefix .. 'sessions', time, cid)      -- its time offline begins now, when the end is noticed
      if not live(prefix, state[1]) then
        redis.call('HSET', prefix .. 's:' .. cid, 'o', '')
        earlier.has_died(prefix, cid, tonumber(state[5]))
        begin_grace(prefix, cid)
      end
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[i], reason)
    redis.call('ZADD', prefix .. 'sessions', time, found[i])       -- others wait behind it
  end)
  return ended
end)

register('due', {'allow-oom'}, function(prefix, node, most)
  if not live(prefix, node) then
    return {0, {}}
  end
  local time = string.format('%.0f', clock(prefix))
  local ended, handed, rests = 0, {}, starts.rests(prefix, tonumber(time))
  local expired = rests and {} or redis.call('ZRANGEBYSCORE', prefix .. 'expiring', '-inf', time, 'LIMIT', 0, most)
  each(#expired, function(i)
    local cid = expired[i]
    redis.call('ZREM', prefix .. 'expiring', cid)
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p')
    if state[2] and state[1] == '' then
      end_session(prefix, '', cid, state[2], state[3])
      ended = ended + 1
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, expired[i], reason)
  end)
  for _, cid in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'grace', '-inf', time, 'LIMIT', 0, most)) do
    redis.call('ZREM', prefix .. 'grace', cid)
    attempt(prefix, CLIENT, cid, function()
      if redis.call('HGET', prefix .. 's:' .. cid, 'o') == '' then
        give_back(prefix, cid, true)
      end
    end)
  end
  local due = rests and {} or redis.call('ZRANGEBYSCORE', prefix .. 'delayed', '-inf', time, 'LIMIT', 0, most)
  for _, epoch in ipairs(due) do
    local will = redis.call('HGET', prefix .. 'delayed:wills', epoch)
    redis.call('ZREM', prefix .. 'delayed', epoch)
    redis.call('HDEL', prefix .. 'delayed:wills', epoch)
    if will then
      local cid = wills.client_of(will)
      attempt(prefix, CLIENT, cid, function()
        if redis.call('HGET', prefix .. 's:' .. cid, 'd') == epoch then
          redis.call('HDEL', prefix .. 's:' .. cid, 'd')
        end
      end)
      -- Without its delay: if this node dies now, the will is still due, and waits for nothing.
      will = wills.without_delay(will)
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
      handed[#handed + 1] = tonumber(epoch)
      handed[#handed + 1] = will
    end
  end
  return {ended, handed}
end)

register('sessions', {'no-writes', 'allow-oom'}, function(prefix, cursor, most)
  local found = redis.call('ZSCAN', prefix .. 'sessions', cursor, 'COUNT', most)
  local sessions = {}
  each(#found[2] / 2, function(i)
    local cid = found[2][2 * i - 1]
    local subs = redis.call('HGETALL', prefix .. 'subs:' .. cid)
    if #subs > 0 then
      sessions[#sessions + 1] = {cid, assert(tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'x'))), subs}
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[2][2 * i - 1], reason)
  end)
  return {found[1], sessions}
end)

register('retained', {'no-writes', 'allow-oom'}, function(prefix, cursor, most)
  local found = redis.call('HSCAN', prefix .. 'retained', cursor, 'COUNT', most)
  local messages, size = {}, 0
  for i = 1, #found[2], 2 do
    local message = found[2][i + 1]
    size = size + #message
    messages[#messages + 1] = found[2][i]
    messages[#messages + 1] = size <= AT_ONCE_BYTES and message or ''
  end
  return {found[1], messages}
end)

register('values', {'no-writes', 'allow-oom'}, function(prefix, topics)
  local result, size = {}, 0
  for _, topic in ipairs(cmsgpack.unpack(topics)) do
    local message = redis.call('HGET', prefix .. 'retained', topic) or ''
    result[#result + 1] = message
    size = size + #message
    if size > AT_ONCE_BYTES then
      break
    end
  end
  return result
end)

-- The number after a seq.
local function seq_after(id)
  return string.format('%.0f', tonumber(id:match('^%d+')) + 1)
end

-- The batch of an entry without its header, or nil if it is not for `me`, a node between spaces.
local function batch_for(me, fields)
  if not fields[4]:find(me, 1, true) then
    return nil
  end
  local batch = fields[2]
  return batch:sub(2 + batch:byte(2) + 8 + 1)
end

-- Note the next entry of a log, and its place among the entries of all logs.
local function look_ahead(log)
  log.entry = redis.call('XRANGE', log.key, log.from .. '-0', '+', 'COUNT', 1)[1]
  log.order = log.entry and tonumber(log.entry[2][6]) or math.huge
end

-- Read the logs of nodes as one, in the order in which Redis has executed the commits: a publisher may have moved from
-- one node to another.
register('logs', {'no-writes', 'allow-oom'}, function(prefix, node, positions)
  local me, list, logs = ' ' .. node .. ' ', cmsgpack.unpack(positions), {}
  for i = 1, #list, 2 do
    local log = {key = prefix .. 'log:' .. list[i], from = string.format('%.0f', list[i + 1])}
    look_ahead(log)
    logs[#logs + 1] = log
  end
  local more, following, batches, size = 1, {}, {}, 0
  for _ = 1, AT_ONCE do
    local first = {order = math.huge}
    for i = 1, #logs do
      if logs[i].order < first.order then
        first = logs[i]
      end
    end
    if not first.entry then
      more = 0
      break
    end
    local batch = batch_for(me, first.entry[2])
    first.from = seq_after(first.entry[1])
    look_ahead(first)
    if batch then
      batches[#batches + 1] = batch
      size = size + #batch
      if size > AT_ONCE_BYTES then
        break
      end
    end
  end
  for i = 1, #logs do
    following[i] = tonumber(logs[i].from)
  end
  return {more, following, batches}
end)
