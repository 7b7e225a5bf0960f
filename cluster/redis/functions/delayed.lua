-- Messages to $delayed/SECONDS/TOPIC: they wait in Redis, and one node publishes them when they are due. They have the
-- form of wills, and are handed to a node as wills are, so the commit that publishes one settles it.

-- The prefix `$tenant/NAME/` of the TOPIC of a message that waits, if it has one; and TOPIC, the byte with QoS and
-- RETAIN, and the bytes of its payload.
local function describe_later(message)
  local at = message_of_will(message)
  local first, last = topic_place(message, at)
  local flags = message:byte(at)
  local properties = math.floor(flags / 16) == 2 and struct.unpack('<I4', message, at + 3) or 0
  local topic = message:sub(first, last)
  return topic:match('^%$tenant/[^/]+/'), topic, flags, #message - last - properties
end

-- The prefix of the tenant of a message that waits; nil: it has none, or is damaged.
local function tenant_later(message)
  if message:find('$tenant/', 1, true) then
    local fine, tenant = pcall(describe_later, message)
    return fine and tenant or nil
  end
end

-- Add to the numbers of waiting messages of tenants, by prefix.
local function count_later(key, counts)
  for tenant, count in pairs(counts) do
    if redis.call('HINCRBY', key .. ':tenants', tenant, count) <= 0 then
      redis.call('HDEL', key .. ':tenants', tenant)
    end
  end
end

-- Take a message out of those that wait. Returns it, nil if it is gone. `counts`: changes of the tenants' numbers.
local function take_later(key, id, counts)
  local message = redis.call('HGET', key .. ':messages', id)
  redis.call('ZREM', key, id)
  redis.call('HDEL', key .. ':messages', id)
  local tenant = message and tenant_later(message)
  if tenant then
    counts[tenant] = (counts[tenant] or 0) - 1
  end
  return message
end

-- Keep messages of a block. `items`: place of the message, seconds, client id of its publisher, and so on.
local function delay_messages(prefix, messages, items)
  local key = prefix .. 'later'
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  -- The clock may go back by the part of a millisecond with each heartbeat; the order of messages must not.
  local time = math.max(clock(prefix), tonumber(redis.call('HGET', key .. ':state', 'c') or 0))
  local bytes, soonest, counts = 0, nil, {}
  for i = 1, #items, 3 do
    local publisher = items[i + 2]
    local message = struct.pack('<H', #publisher) .. publisher .. messages[items[i]]
    local due = time + items[i + 1] * 1000 + 1     -- the present millisecond may end at once
    -- Members with the same score have an order: that of their bytes.
    local id = string.format('%016.0f', redis.call('INCR', prefix .. 'epoch'))
    redis.call('ZADD', key, string.format('%.0f', due), id)
    redis.call('HSET', key .. ':messages', id, message)
    local tenant = tenant_later(message)
    if tenant then
      counts[tenant] = (counts[tenant] or 0) + 1
    end
    bytes = bytes + #message
    soonest = math.min(soonest or due, due)
  end
  redis.call('HSET', key .. ':state', 'c', string.format('%.0f', time))
  count_later(key, counts)
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
  local result, bytes, counts = {0, 0, 0}, 0, {}
  local due = string.format('%.0f', time - tonumber(args[4]))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', due, 'LIMIT', 0, args[3])) do
    local message = take_later(key, id, counts)
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
    count_later(key, counts)
  end
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then
    result[1] = tonumber(first) - time
    result[2] = redis.call('ZCARD', key)
    result[3] = tonumber(redis.call('HGET', key .. ':state', 'b'))
  end
  return result
end})

local LISTED = 1000           -- messages that one call looks at

-- args: prefix, how TOPIC begins, how it does not begin ('' = any), time at which and id of the message after which the
-- list begins, max. Returns {time and id after which to go on, or nothing, {id, milliseconds until it is due, time at
-- which it is due, publisher, TOPIC, QoS and RETAIN as one byte, bytes of the payload}, ...}.
register({function_name = 'flockmq_list_later', flags = {'no-writes'}, callback = function(args)
  local prefix, own, without, most = args[1], args[2], args[3], tonumber(args[6])
  local key, time = prefix .. 'later', clock(prefix)
  local at = redis.call('ZRANK', key, args[5])
  at = at and at + 1 or redis.call('ZCOUNT', key, '-inf', '(' .. args[4])
  local found = redis.call('ZRANGE', key, at, at + LISTED - 1, 'WITHSCORES')
  local result = {'', ''}
  for i = 1, #found, 2 do
    local id, due = found[i], found[i + 1]
    local message = redis.call('HGET', key .. ':messages', id)
    if message and (tonumber(due) > tonumber(args[4]) or id > args[5]) then
      local fine, _, topic, flags, size = pcall(describe_later, message)
      if fine and topic:sub(1, #own) == own and (without == '' or topic:sub(1, #without) ~= without) then
        local publisher = message:sub(3, 2 + struct.unpack('<H', message))
        result[#result + 1] = {id, tonumber(due) - time, due, publisher, topic, flags % 8, size}
      end
    end
    if #result - 2 >= most or i + 1 == 2 * LISTED then
      result[1], result[2] = due, id
      break
    end
  end
  return result
end})

-- args: prefix, how TOPIC begins, id. Drops a message that waits. Returns 1; 0: there is none with this TOPIC.
register('flockmq_cancel_later', function(args)
  local key, own, id, counts = args[1] .. 'later', args[2], args[3], {}
  local message = redis.call('HGET', key .. ':messages', id)
  if not message then
    return 0
  end
  local fine, _, topic = pcall(describe_later, message)
  if not fine or topic:sub(1, #own) ~= own then
    return 0
  end
  take_later(key, id, counts)
  redis.call('HINCRBY', key .. ':state', 'b', -#message)
  count_later(key, counts)
  return 1
end)
