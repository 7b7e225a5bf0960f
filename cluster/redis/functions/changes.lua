-- Numbers a change of the state that each node has, keeps it in the stream of changes, and publishes it.

local publish = library.publish

local KEPT_CHANGES = 100000   -- entries of the stream of changes: a node that is further behind rejoins

-- A mark for a change that a function makes, as a record. Two changes with the same number, before and after a failover
-- that lost the first, have different ones. (The random numbers of Lua are the same in each Redis; the time is not.)
local function mark()
  local time = redis.call('TIME')
  return {'mark', tonumber(time[1]) * 1000000 + tonumber(time[2])}
end

-- Number the changes of a block, append them to the stream, publish them to every node. `kept` is the entry of the
-- stream; it lacks the retained messages, which the hash holds.
local function change(prefix, origin, block, kept)
  local number = redis.call('INCR', prefix .. 'change')
  redis.call('XADD', prefix .. 'changes', 'MAXLEN', '~', KEPT_CHANGES, string.format('%.0f-0', number), 'o', origin,
    'b', kept or block)
  publish(prefix .. 'all', cmsgpack.pack({'changes', number, origin, block}))
  return number
end

return {change = change, mark = mark}
