-- The barrier: counts how far all nodes have applied the changes (G4). In a large cluster each node reports here, so a
-- node that waits gets one message, and not one of each node.
--
-- Nodes that wait are told at the end of a round: when all nodes have applied the changes that were wanted when the
-- round began. Else, while changes go on, each report would tell each of them, since it makes the least number grow.

local publish, register = library.publish, library.register

local barrier = {
  -- `applied`: by node, the last change that it has applied; `applied:wanted`: by node, the change that it waits for;
  -- `applied:goal`: the change that ends the round.
  KEYS = {kind = 'common', 'applied', 'zset', 'applied:wanted', 'zset', 'applied:goal', 'string'},
}

-- The lowest (0) or highest (-1) score of a sorted set as a text, or nil.
local function score_at(key, place)
  return redis.call('ZRANGE', key, place, place, 'WITHSCORES')[2]
end

-- End the round if all nodes have applied its changes. Begin one if there is none, and a node waits.
local function advance(prefix)
  local wanted, goal = prefix .. 'applied:wanted', prefix .. 'applied:goal'
  local begun = redis.call('GET', goal)
  local last, least = begun or score_at(wanted, -1), score_at(prefix .. 'applied', 0)
  if not last or not least then
    return
  end
  if tonumber(least) >= tonumber(last) then
    local message = cmsgpack.pack({'all_applied', tonumber(least)})
    for _, node in ipairs(redis.call('ZRANGE', wanted, 0, -1)) do
      publish(prefix .. 'to:' .. node, message)
    end
    redis.call('ZREMRANGEBYSCORE', wanted, '-inf', least)
    redis.call('DEL', goal)
    begun, last = false, score_at(wanted, -1)
  end
  if last and not begun then
    redis.call('SET', goal, last)
  end
end

-- Changes wait for the node from now on.
function barrier.add(prefix, node)
  redis.call('ZADD', prefix .. 'applied', 0, node)
end

-- No change waits for the node any more.
function barrier.remove(prefix, node)
  redis.call('ZREM', prefix .. 'applied', node)
  redis.call('ZREM', prefix .. 'applied:wanted', node)
  advance(prefix)
end

register('applied', {'allow-oom'}, function(prefix, node, change, wanted)
  local applied = prefix .. 'applied'
  if not redis.call('ZSCORE', applied, node) then
    return {'gone'}
  end
  redis.call('ZADD', applied, change, node)
  if wanted ~= '0' then
    redis.call('ZADD', prefix .. 'applied:wanted', wanted, node)
  end
  advance(prefix)
  return {'ok'}
end)

return barrier
