-- Sessions, as a node reads them: at a claim, and when its link is back.

local call, in_parts, register = library.call, library.in_parts, library.register
local AT_ONCE_BYTES, NOTHING = library.AT_ONCE_BYTES, library.NOTHING
local attempt, client_failed, each = damage.attempt, damage.client_failed, damage.each
local note_damage, refusal, CLIENT = damage.note_damage, damage.refusal, damage.CLIENT
local live = nodes.live
local FLAGS, append_entries, bytes_of = packed_sessions.FLAGS, packed_sessions.append_entries, packed_sessions.bytes_of
local drop_last = packed_sessions.drop_last
local entry_at, has, length_of = packed_sessions.entry_at, packed_sessions.has, packed_sessions.length_of
local read, session_of, size_of = packed_sessions.read, packed_sessions.of, packed_sessions.size_of
local slice, NO_MESSAGE = packed_sessions.slice, packed_sessions.NO_MESSAGE
local common_end, starts = redis_restarts.common_end, redis_restarts.starts
local held = session_ends.held

-- Entries of a queue from number `from` on, as many as one reply may have.
local function entries(session, from, count)
  local start = from - session.head
  if bytes_of(session) <= AT_ONCE_BYTES then
    return slice(session, start, start + count - 1)
  end
  local found, size = {}, 0
  while #found < count and size < AT_ONCE_BYTES do
    local value = entry_at(session, start + #found)
    if not value then
      break
    end
    found[#found + 1] = value
    size = size + #value
  end
  return found
end

-- What a node has to know of a session, with at most so many entries of its queue from number `from` on.
local function load(session, from, count)
  from = math.max(from, session.head)
  local found, tail = entries(session, from, count), session.head + length_of(session)
  local last = from + #found >= tail
  return {session.head, session.sent, from, found, tail,
    last and session.marks > 0 and redis.call('HGETALL', queues.states_of(session)) or NOTHING,
    last and has(session, FLAGS.AWAITED) and redis.call('HGETALL', session.prefix .. 'in:' .. session.cid) or NOTHING,
    held.parts(session) or 0}
end

register('load', {'no-writes', 'allow-oom'}, function(prefix, cid, first, most)
  local fine, result = attempt(prefix, CLIENT, cid, function()
    local session = session_of(prefix, cid)
    return session and load(session, tonumber(first), tonumber(most)) or {1, 1, tonumber(first), {}, 1, {}, {}, 0}
  end)
  return fine and result or refusal(call.damaged[3], call.damaged[4])
end)

register('behind', {'no-writes', 'allow-oom'}, function(prefix, node, ends)
  local list, found = cmsgpack.unpack(ends), {}
  each(#list / 2, function(i)
    local cid, expected = list[2 * i - 1], list[2 * i]
    local session = session_of(prefix, cid)
    if session and session.head + length_of(session) > expected then
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
    local session = session_of(prefix, cid)
    if session and session.incarnation == incarnation and common_end(prefix, node, session) < expected then
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
  local session = session_of(prefix, cid)
  if not session or session.incarnation ~= incarnation
      or not (session.owner == node or session.waits:find('=' .. node .. ',', 1, true)) then
    return                                       -- another node may have sent what is there now
  end
  local first = common_end(prefix, node, session)
  if lost[#lost][1] < first or lost[#lost][1] - first > MAX_GAP then
    return
  end
  local states, at = queues.states_of(session), math.max(first - session.head, 0)
  session.acked = queues.done(session)
  local others = slice(session, at, -1)
  for j = 1, #others do
    local number = session.head + at + j - 1
    local mark = session.marks > 0 and redis.call('HGET', states, number)
    if mark then                                 -- it went back to its group
      redis.call('HDEL', states, number)
      session.marks, session.acked = session.marks - 1, session.acked - (mark == 'd' and 1 or 0)
      others[j] = false
    end
  end
  drop_last(session, #others)
  local values, marked, number, size = {}, {}, first, 0
  local function add(entry)
    values[#values + 1] = entry
    size = size + size_of(entry)
  end
  for j = 1, #lost do
    local wanted, entry = unpack(lost[j])
    while number <= wanted do
      local mark = number < wanted and 'd' or entry == '' and 'r'
      add(mark and NO_MESSAGE or entry)
      if mark then
        marked[#marked + 1], marked[#marked + 2] = number, mark
        session.marks = session.marks + 1
        session.acked = session.acked + (mark == 'd' and 1 or 0)
      end
      number = number + 1
    end
    job.restored = job.restored + (wanted >= first and 1 or 0)
  end
  for j = 1, #others do
    if others[j] then
      add(others[j])
    end
  end
  append_entries(session, values, 1, size)
  in_parts('HSET', states, marked, 2)
  session.sent, session.head = math.max(session.sent, number), math.min(session.head, first)
  -- The node may repeat this call.
  redis_restarts.move_tail(prefix, prefix .. 's:' .. cid, incarnation, first + #values)
  queues.drop_done(session, session.head)
end

register('restore', {'allow-oom'}, function(prefix, node, sessions)
  local job = {prefix = prefix, node = node, list = cmsgpack.unpack(sessions), restored = 0}
  if live(prefix, node) and not starts.are_missed(prefix, node) then
    read(prefix, job.list)
    each(#job.list, restore_one, client_failed, job)
  end
  return job.restored
end)

register('owned', {'no-writes', 'allow-oom'}, function(prefix, node, cursor, most)
  local found = redis.call('SSCAN', prefix .. 'owned:' .. node, cursor, 'COUNT', most)
  local claims = {}
  for i = 1, #found[2] do
    local cid, epoch = found[2][i]:match('^(.*)%z([^%z]*)$')
    local fine, session = pcall(session_of, prefix, cid)
    claims[#claims + 1] = cid
    claims[#claims + 1] = tonumber(epoch)
    claims[#claims + 1] = fine and session and session.epoch == tonumber(epoch) and 0 or 1
  end
  return {found[1], claims}
end)
