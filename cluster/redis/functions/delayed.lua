-- Messages to $delayed/SECONDS/TOPIC: they wait in Redis, and one node publishes them when they are due. They have the
-- form of wills, and are handed to a node as wills are, so the commit that publishes one settles it.

-- Keep messages of a block. `items`: place of the message, seconds, client id of its publisher, and so on.
local function delay_messages(prefix, messages, items)
  local key = prefix .. 'later'
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  -- The clock may go back by the part of a millisecond with each heartbeat; the order of messages must not.
  local time = math.max(clock(prefix), tonumber(redis.call('HGET', key .. ':state', 'c') or 0))
  local bytes, soonest = 0, nil
  for i = 1, #items, 3 do
    local publisher = items[i + 2]
    local message = struct.pack('<H', #publisher) .. publisher .. messages[items[i]]
    local due = time + items[i + 1] * 1000 + 1     -- the present millisecond may end at once
    -- Members with the same score have an order: that of their bytes.
    local id = string.format('%016.0f', redis.call('INCR', prefix .. 'epoch'))
    redis.call('ZADD', key, string.format('%.0f', due), id)
    redis.call('HSET', key .. ':messages', id, message)
    bytes = bytes + #message
    soonest = math.min(soonest or due, due)
  end
  redis.call('HSET', key .. ':state', 'c', string.format('%.0f', time))
  redis.call('HINCRBY', key .. ':state', 'b', bytes)
  if not first or soonest < tonumber(first) then
    publish(prefix .. 'all', cmsgpack.pack({'later', math.ceil(soonest - clock(prefix))}))
  end
end

-- args: prefix, node, max, milliseconds for which a message must have been due. Hands the caller delayed messages, to
-- be settled by the commit that publishes them, the earliest first. Returns {milliseconds until the first of the others
-- is due, their number, their bytes, epoch, message, ...}.
register({function_name = 'flockmq_later', flags = {'allow-oom'}, callback = function(args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  local key, time = prefix .. 'later', clock(prefix)
  local result, bytes = {0, 0, 0}, 0
  local due = string.format('%.0f', time - tonumber(args[4]))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', due, 'LIMIT', 0, args[3])) do
    local message = redis.call('HGET', key .. ':messages', id)
    redis.call('ZREM', key, id)
    redis.call('HDEL', key .. ':messages', id)
    if message then
      redis.call('HSET', prefix .. 'wills:' .. node, string.format('%.0f', tonumber(id)), message)
      result[#result + 1] = tonumber(id)
      result[#result + 1] = message
      bytes = bytes + #message
    end
    if bytes > AT_ONCE_BYTES then
      break
    end
  end
  if bytes > 0 then
    redis.call('HINCRBY', key .. ':state', 'b', -bytes)
  end
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then
    result[1] = tonumber(first) - time
    result[2] = redis.call('ZCARD', key)
    result[3] = tonumber(redis.call('HGET', key .. ':state', 'b'))
  end
  return result
end})
