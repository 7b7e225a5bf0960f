-- Processes of Redis that begin with less than the nodes have seen: they note where each queue and group ended.

local call, NOTHING = library.call, library.NOTHING
local clock = clock.clock

-- A process of Redis may begin with less than the nodes have seen: a replica that was behind, a disk that was. Numbers
-- of queues and places of groups are then used again. So a new process notes where each queue ended before its first
-- push, and each group. A node that comes back compares its own numbers with that, not with the queue of now, which
-- other nodes may have filled again. These are variables of the process, not keys: a promoted replica has none, since
-- it has executed no function.
local TAILS = 120000          -- milliseconds for which it notes them: after that no node still has clients of before
local MAX_TAILS = 20000       -- of a prefix
local redis_restarts = {}
local notes = {}              -- by prefix; false: nothing is noted any more

local function begin_notes(prefix)
  notes[prefix] = {
    born = nil,               -- the time of the first call that looked at the clock
    count = 0,                -- of `tails`
    tails = {},               -- key of a session or group -> {incarnation or 0, end}
    compared = {},            -- ids of nodes that joined with this process, or compared their numbers with it
  }
end

-- The processes of Redis that nodes have used are counted. A node for which more than one has begun can't compare: what
-- the earlier of them has noted is gone.
local starts = {
  of = {},                    -- by prefix: the number of this process, or an error
  found = {},                 -- by prefix: whether there were sessions or delayed wills when it was counted
  rest_ends = {},             -- by prefix, by the clock of the cluster
  REST = 10000,               -- milliseconds
}

-- The number of this process. If others have been counted since, they had the keys: a slot of a Redis Cluster has moved
-- away and back, or a primary was a replica for a while. Then this process begins anew, since what it has noted is old.
function starts.count(prefix)
  local number = tonumber(starts.of[prefix])
  local is_back = number and tonumber(redis.pcall('GET', prefix .. 'starts')) ~= number
  if is_back then
    begin_notes(prefix)
  end
  if is_back or not starts.of[prefix] then
    starts.of[prefix], starts.rest_ends[prefix] = redis.pcall('INCR', prefix .. 'starts'), nil
    starts.found[prefix] = redis.call('EXISTS', prefix .. 'sessions', prefix .. 'delayed') > 0
  end
  return tonumber(starts.of[prefix]) or 0
end

-- Whether processes have begun and ended since the last ordinary heartbeat of a node; not, if a key is damaged.
function starts.are_missed(prefix, node)
  local seen = redis.pcall('HGET', prefix .. 'node:' .. node, 'starts')
  return (tonumber(starts.of[prefix]) or 0) > (tonumber(seen) or math.huge) + 1
end

-- A process that finds sessions of an earlier one may lack claims of clients that are connected. It ends no session,
-- and hands out no delayed will, until their nodes have noticed that, and they have claimed their sessions again.
-- `time`: by the clock of the cluster, which the first heartbeat brings up to date.
function starts.begin_rest(prefix, time)
  if starts.found[prefix] and not starts.rest_ends[prefix] then
    starts.rest_ends[prefix] = time + starts.REST
  end
end

-- Whether this process rests at this time.
function starts.rests(prefix, time)
  return time < (starts.rest_ends[prefix] or 0)
end

-- The noted ends by key; nil if nothing is noted any more.
local function noted_tails(prefix)
  if notes[prefix] == nil then
    begin_notes(prefix)
  end
  local found = notes[prefix]
  if found and not call.timed then
    local fine, time = pcall(clock, prefix)        -- it may be damaged
    call.timed, found.born = true, found.born or fine and time
    if fine and time - found.born > TAILS then
      notes[prefix], found = false, nil
    end
  end
  return found and found.tails or nil
end

-- A queue or a group gets its first message; it ended there until now.
local function note_tail(prefix, key, incarnation, tail)
  local found = notes[prefix]
  if not found.tails[key] and found.count < MAX_TAILS then
    found.tails[key] = {incarnation, tail}
    found.count = found.count + 1
  end
end

-- The caller has given back what was lost of a queue: from now on this is the end.
function redis_restarts.move_tail(prefix, key, incarnation, tail)
  local tails = noted_tails(prefix)
  if tails and tails[key] then
    tails[key] = {incarnation, tail}
  end
end

-- A node has joined with this process, or has compared its numbers with it.
function redis_restarts.note_compared(prefix, node)
  if notes[prefix] == nil then
    begin_notes(prefix)
  end
  if notes[prefix] then
    notes[prefix].compared[node] = true
  end
end

-- The noted ends that count for a node, by key.
function redis_restarts.tails_for(prefix, node)
  local tails = noted_tails(prefix)
  return tails and not notes[prefix].compared[node] and tails or NOTHING
end

-- The clock of the cluster has made a step: the time for notes is no part of it.
function redis_restarts.postpone(prefix, milliseconds)
  local found = notes[prefix]
  if found and found.born then
    found.born = found.born + milliseconds
  end
end

-- Where a queue ended when this process began, or where it ends, if that is less: a node that has not compared its
-- numbers with this process may have had other messages from there on.
local function common_end(prefix, node, session)
  local tail = session.head + packed_sessions.length_of(session)
  local before = redis_restarts.tails_for(prefix, node)[prefix .. 's:' .. session.cid]
  return before and before[1] == session.incarnation and math.min(tail, before[2]) or tail
end

redis_restarts.common_end = common_end
redis_restarts.note_tail = note_tail
redis_restarts.noted_tails = noted_tails
redis_restarts.starts = starts
return redis_restarts
