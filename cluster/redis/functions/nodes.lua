-- Whether a node is a member, and the number of its last commit.

local function live(prefix, node)
  return redis.call('HEXISTS', prefix .. 'nodes', node) == 1
end

-- The number of a live node's last commit; nil if it is dead, or its description is damaged: it has to rejoin.
local function seq_of(prefix, node)
  local key = prefix .. 'node:' .. node
  local last = redis.pcall('HGET', key, 'seq')
  if last and not tonumber(last) then
    redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. (last.err or 'seq is no number'))
  end
  return tonumber(last)
end

-- Count claims of a node, or a call with acknowledgements, which would be missed: a node whose link is back compares
-- this with the replies that it has had. The call takes effect also if the count is damaged.
local function count_calls(prefix, node, count)
  redis.pcall('HINCRBY', prefix .. 'node:' .. node, 'calls', count)
end

return {count_calls = count_calls, live = live, seq_of = seq_of}
