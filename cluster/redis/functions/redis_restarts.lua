-- Processes of Redis that begin with less than the nodes have seen: they note where each queue and group ended.

local call = library.call
local clock = clock.clock

-- A process of Redis may begin with less than the nodes have seen: a replica that was behind, a disk that was. Numbers
-- of queues and places of groups are then used again. So a new process notes where each queue ended before its first
-- push, and each group. A node that comes back compares its own numbers with that, not with the queue of now, which
-- other nodes may have filled again. These are variables of the process, not keys: a promoted replica has none, since
-- it has executed no function.
local TAILS = 120000          -- milliseconds for which it notes them: after that no node still has clients of before
local MAX_TAILS = 20000
local redis_restarts = {
  born = {},                  -- by prefix, the time of the first call
  noted = 0,                  -- number of `tails`
  tails = {},                 -- key of a session or group -> {incarnation or 0, end}; nil: nothing is noted any more
  known = {},                 -- prefix and id of nodes that joined with this process, or compared their numbers with it
}

-- The processes of Redis that nodes have used are counted. A node for which more than one has begun can't compare: what
-- the earlier of them has noted is gone.
local starts = {
  of = {},                    -- by prefix: the number of this process, or an error
  found = {},                 -- by prefix: whether there were sessions or delayed wills when it was counted
  rest_ends = {},             -- by prefix, by the clock of the cluster
  REST = 10000,               -- milliseconds
}

-- The number of this process.
function starts.count(prefix)
  if not starts.of[prefix] then
    starts.of[prefix] = redis.pcall('INCR', prefix .. 'starts')
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

-- The table of the noted ends; nil if there is none any more.
local function noted_tails(prefix)
  if redis_restarts.tails and not call.timed then
    local fine, time = pcall(clock, prefix)        -- it may be damaged
    call.timed, redis_restarts.born[prefix] = true, redis_restarts.born[prefix] or fine and time
    if fine and time - redis_restarts.born[prefix] > TAILS then
      redis_restarts.tails, redis_restarts.known = nil, nil
    end
  end
  return redis_restarts.tails
end

local function note_tail(key, incarnation, tail)
  if not redis_restarts.tails[key] and redis_restarts.noted < MAX_TAILS then
    redis_restarts.tails[key] = {incarnation, tail}
    redis_restarts.noted = redis_restarts.noted + 1
  end
end

-- Where a queue ended when this process began, or where it ends, if that is less: a node that has not compared its
-- numbers with this process may have had other messages from there on.
local function common_end(prefix, node, cid, incarnation, head)
  local tail = head + redis.call('LLEN', prefix .. 'q:' .. cid)
  local has_tails = noted_tails(prefix) and not redis_restarts.known[prefix .. node]
  local before = has_tails and redis_restarts.tails[prefix .. 's:' .. cid]
  return before and before[1] == incarnation and math.min(tail, before[2]) or tail
end

redis_restarts.common_end = common_end
redis_restarts.note_tail = note_tail
redis_restarts.noted_tails = noted_tails
redis_restarts.starts = starts
return redis_restarts
