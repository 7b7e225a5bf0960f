-- Sessions, as a node reads them: at a claim, and when its link is back.

local call, in_parts, register = library.call, library.in_parts, library.register
local AT_ONCE_BYTES = library.AT_ONCE_BYTES
local attempt, client_failed, each = damage.attempt, damage.client_failed, damage.each
local note_damage, refusal, CLIENT = damage.note_damage, damage.refusal, damage.CLIENT
local live = nodes.live
local common_end, starts = redis_restarts.common_end, redis_restarts.starts
local held = session_ends.held

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

register('load', {'no-writes', 'allow-oom'}, function(prefix, cid, first, most)
  local fine, result = attempt(prefix, CLIENT, cid, load, prefix, cid, tonumber(first), tonumber(most))
  return fine and result or refusal(call.damaged[3], call.damaged[4])
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
  redis_restarts.move_tail(prefix, key, incarnation, first + #values)  -- the node may repeat this call
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
