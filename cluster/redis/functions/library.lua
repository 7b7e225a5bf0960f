-- The function library of a cluster: its atomic steps. Every node loads it into Redis when it starts. The protocol is
-- in deploy/docs/CLUSTER.md; cluster/redis/calls.py has the meaning, the arguments and the reply of each function.
--
-- A node joins the files to one library, in the order of MODULES (cluster/redis/connector.py). Each file is the body of
-- a function, whose result is a variable with the name of the file: `queues.done` is in queues.lua. The names that a
-- file uses of others are bound to locals at its head.
--
-- The first argument of every function is the key prefix. In a Redis Cluster callers declare one key, the bare hash tag
-- of the prefix. It never exists: so the server replies MOVED or ASK instead of running the function, whenever not all
-- keys of the slot are there. Functions that change state check that the caller is a live node: a node that was
-- declared dead gets {'gone'}, and the function changes nothing. Messages between nodes are MessagePack arrays; the
-- first element is the kind.

local AT_ONCE = 1000          -- values per command: Lua's stack is small
local AT_ONCE_BYTES = 524288  -- of messages in one reply: Redis disconnects a subscriber with 32 MB of pending output
local MOST_ARGUMENTS = 14     -- of a function, but for the messages of `commit`

local call = {                -- the present call
  arguments = {},
  sharded = false,            -- whether the caller declared a key: channels are sharded then
  timed = false,              -- whether it has looked at the clock for `noted_tails`
  woken = {},                 -- groups in which it gave subscribers room: what waits there goes to them at its end
  damaged = {},               -- not applied: 'client', 'group', 'node' or 'common', name, key, reason, in turn
  sessions = {},              -- by client id, see packed_sessions.lua: a text that is read, false = none, or a table
  changed = {},               -- client id -> whether the text has changed
  cids = {},                  -- these client ids, in turn
  keys = {},                  -- the keys of the sessions
  waiting = nil,              -- sets in which sessions wait for their end, see expiry.lua
  time = nil,                 -- the clock of the cluster, once it is read
  bytes = nil,                -- changes of the bytes of tenants' queues, by tenant
  sums = nil,                 -- these bytes before the call, by tenant
}
local library = {call = call, at_end = {}} -- functions that write what a call has noted, with the prefix

-- Register a function. `flags`: of Redis. `run` gets the arguments that cluster/redis/calls.py lists, one by one.
local function register(name, flags, run)
  local function callback(keys, args)
    call.sharded, call.timed, call.arguments = keys[1] ~= nil, false, args
    if call.damaged[1] then
      call.damaged = {}
    end
    if next(call.woken) then
      call.woken = {}
    end
    call.sessions, call.changed, call.cids, call.keys = {}, {}, {}, {}
    call.waiting, call.time, call.bytes, call.sums = nil, nil, nil, nil
    local result = run(unpack(args, 1, MOST_ARGUMENTS))
    for i = 1, #library.at_end do
      library.at_end[i](args[1])
    end
    return result
  end
  redis.register_function({function_name = 'flockmq_' .. name, flags = flags, callback = callback})
end

local function publish(channel, message)
  redis.call(call.sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
end

local function notify(prefix, node, ...)
  publish(prefix .. 'to:' .. node, cmsgpack.pack({...}))
end

-- Large messages that are to be sent to a node: publish them before the list that has them (from its element `first`
-- on), with `false` in their places. As a part of another text each byte would be hashed once more: 1.5 us for a KiB,
-- while PUBLISH takes 1 us.
local LARGE = 1024

local NOTHING = {}

-- Append values to a list in a table of lists.
local function append(lists, key, ...)
  local list = lists[key] or {}
  lists[key] = list
  for i = 1, select('#', ...) do
    list[#list + 1] = (select(i, ...))
  end
end

-- Call a command for many arguments, some at a time: unpacking needs room on Lua's stack. `each`: arguments that belong
-- together. Returns the replies of one list after the other.
local function in_parts(command, key, arguments, each)
  local result = {}
  local step = AT_ONCE - AT_ONCE % (each or 1)
  for i = 1, #arguments, step do
    local found = redis.call(command, key, unpack(arguments, i, math.min(i + step - 1, #arguments)))
    if type(found) == 'table' then
      for j = 1, #found do
        result[i + j - 1] = found[j]
      end
    end
  end
  return result
end

library.AT_ONCE = AT_ONCE
library.AT_ONCE_BYTES = AT_ONCE_BYTES
library.LARGE = LARGE
library.NOTHING = NOTHING
library.append = append
library.in_parts = in_parts
library.publish = publish
library.register = register
library.notify = notify
return library
