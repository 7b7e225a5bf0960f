local call = library.call
local clock = clock.clock

-- A process of Redis may begin with less than the nodes have seen: a replica that was behind, a disk that was. Numbers
-- of queues and places of groups are then used again. So a new process notes where each queue ended before its first
-- push, and each group. A node that comes back compares its own numbers with that, not with the queue of now, which
-- other nodes may have filled again. These are variables of the process, not keys: a promoted replica has none, since
-- it has executed no function.
local TAILS = 120000          -- milliseconds for which it notes them: after that no node still has clients of before
local MAX_TAILS = 20000
local processes = {
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
  if processes.tails and not call.timed then
    local fine, time = pcall(clock, prefix)        -- it may be damaged
    call.timed, processes.born[prefix] = true, processes.born[prefix] or fine and time
    if fine and time - processes.born[prefix] > TAILS then
      processes.tails, processes.known = nil, nil
    end
  end
  return processes.tails
end

local function note_tail(key, incarnation, tail)
  if not processes.tails[key] and processes.noted < MAX_TAILS then
    processes.tails[key] = {incarnation, tail}
    processes.noted = processes.noted + 1
  end
end

-- Where a queue ended when this process began, or where it ends, if that is less: a node that has not compared its
-- numbers with this process may have had other messages from there on.
local function common_end(prefix, node, cid, incarnation, head)
  local tail = head + redis.call('LLEN', prefix .. 'q:' .. cid)
  local before = noted_tails(prefix) and not processes.known[prefix .. node] and processes.tails[prefix .. 's:' .. cid]
  return before and before[1] == incarnation and math.min(tail, before[2]) or tail
end

processes.common_end = common_end
processes.note_tail = note_tail
processes.noted_tails = noted_tails
processes.starts = starts
return processes
