-- Messages to $delayed/SECONDS/TOPIC: they wait in Redis, and one node publishes them when they are due. They have the
-- form of wills, and are handed to a node as wills are, so the commit that publishes one settles it.

local publish, register, AT_ONCE_BYTES = library.publish, library.register, library.AT_ONCE_BYTES
local live = nodes.live
local clock = clock.clock
local topic_place = wills.topic_place

local FAR = queues.FAR        -- later than all due times

-- The prefix `$tenant/NAME/` of the TOPIC of a message that waits, if it has one; and TOPIC, the byte with QoS and
-- RETAIN, and the bytes of its payload.
local function describe_later(message)
  local at = wills.message_of(message)
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

-- When the first message is due; FAR: none will be. Staged chunks of transactions are never due: their time is
-- infinite.
local function first_due(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and first ~= 'inf' and tonumber(first) or FAR
end

-- The time for messages that begin to wait now, or are due now. The clock may go back with a heartbeat; the order of
-- messages must not.
local function ordered_time(prefix)
  local state = prefix .. 'later:state'
  local time = math.max(clock(prefix), tonumber(redis.call('HGET', state, 'c') or 0))
  redis.call('HSET', state, 'c', string.format('%.0f', time))
  return time
end

-- Keep messages of a block. `items`: place of the message, seconds, client id of its publisher, and so on.
local function delay_messages(prefix, messages, items)
  local key = prefix .. 'later'
  local first = first_due(key)
  local time = ordered_time(prefix)
  local bytes, soonest, counts = 0, nil, {}
  for i = 1, #items, 3 do
    local publisher = items[i + 2]
    local message = wills.pack(publisher, messages[items[i]])
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
  count_later(key, counts)
  redis.call('HINCRBY', key .. ':state', 'b', bytes)
  if soonest < first then
    publish(prefix .. 'all', cmsgpack.pack({'later', math.ceil(soonest - clock(prefix))}))
  end
end

-- Whether another node has messages that it has not published yet: no node gets more, so that their order is kept.
local function is_held(prefix, node)
  local holder = redis.call('HGET', prefix .. 'later:state', 'h')
  return holder and holder ~= node and redis.call('EXISTS', prefix .. 'later:held') == 1
    and redis.call('HEXISTS', prefix .. 'nodes', holder) == 1
end

-- A node has ended that had a message: it waits again, before all that are due. Returns whether it is one.
local function give_back_later(prefix, epoch, message)
  local key = prefix .. 'later'
  if redis.call('SREM', key .. ':held', epoch) == 0 then
    return false
  end
  local id, tenant = string.format('%016.0f', epoch), tenant_later(message)
  redis.call('ZADD', key, 0, id)
  redis.call('HSET', key .. ':messages', id, message)
  redis.call('HINCRBY', key .. ':state', 'b', #message)
  if tenant then
    count_later(key, {[tenant] = 1})
  end
  return true
end

register('later', {'allow-oom'}, function(prefix, node, most, late)
  if not live(prefix, node) then
    return {'gone'}
  end
  local key, time = prefix .. 'later', clock(prefix)
  most = is_held(prefix, node) and 0 or most
  local handed, bytes, counts = {}, 0, {}
  local due = string.format('%.0f', time - tonumber(late))
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', due, 'LIMIT', 0, most)) do
    local message = take_later(key, id, counts)
    if message then
      local epoch = string.format('%.0f', tonumber(id))
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, message)
      redis.call('SADD', key .. ':held', epoch)
      handed[#handed + 1] = tonumber(id)
      handed[#handed + 1] = message
      bytes = bytes + #message
    end
    if bytes > AT_ONCE_BYTES then
      break
    end
  end
  if bytes > 0 then
    redis.call('HSET', key .. ':state', 'h', node)
    redis.call('HINCRBY', key .. ':state', 'b', -bytes)
    count_later(key, counts)
  end
  local first = first_due(key)
  return {'ok', first == FAR and FAR or first - time, redis.call('ZCARD', key),
    tonumber(redis.call('HGET', key .. ':state', 'b') or 0), handed}
end)

local LISTED = 1000           -- messages that one call looks at

register('list_later', {'no-writes'}, function(prefix, begins, without, due, id, most)
  local key, time = prefix .. 'later', clock(prefix)
  local at = redis.call('ZRANK', key, id)
  at = at and at + 1 or redis.call('ZCOUNT', key, '-inf', '(' .. due)
  local found = redis.call('ZRANGE', key, at, at + LISTED - 1, 'WITHSCORES')
  local result = {'', '', {}}
  local rows = result[3]
  for i = 1, #found, 2 do
    local its_id, its_due = found[i], found[i + 1]
    local message = redis.call('HGET', key .. ':messages', its_id)
    if its_due == 'inf' then
      break
    end
    if message and (tonumber(its_due) > tonumber(due) or its_id > id) then
      local fine, _, topic, flags, size = pcall(describe_later, message)
      if fine and topic:sub(1, #begins) == begins and (without == '' or topic:sub(1, #without) ~= without) then
        rows[#rows + 1] = {its_id, tonumber(its_due) - time, its_due, wills.client_of(message), topic, flags % 4,
          math.floor(flags / 4) % 2, size}
      end
    end
    if #rows >= tonumber(most) or i + 1 == 2 * LISTED then
      result[1], result[2] = its_due, its_id
      break
    end
  end
  return result
end)

register('cancel_later', {}, function(prefix, begins, id)
  local key, counts = prefix .. 'later', {}
  local message = redis.call('HGET', key .. ':messages', id)
  if not message then
    return 0
  end
  local fine, _, topic = pcall(describe_later, message)
  if not fine or topic:sub(1, #begins) ~= begins then
    return 0
  end
  take_later(key, id, counts)
  redis.call('HINCRBY', key .. ':state', 'b', -#message)
  count_later(key, counts)
  return 1
end)

return {delay_messages = delay_messages, give_back = give_back_later, count_later = count_later,
  ordered_time = ordered_time, take_later = take_later, tenant_later = tenant_later}
