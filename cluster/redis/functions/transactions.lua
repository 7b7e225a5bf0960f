-- Transactions: chunks of messages wait among the delayed messages, never due, until a commit makes all of them due.

local publish, register = library.publish, library.register
local clock = clock.clock
local count_later, ordered_time = delayed.count_later, delayed.ordered_time
local take_later, tenant_later = delayed.take_later, delayed.tenant_later

local REMEMBERED = 1000       -- names of a user whose last transaction is known
local PARTS = 10000           -- of a name that may wait: a commit looks at all of them

-- The parts that wait, by the time at which they expire; the ids of the chunks of one.
local function keys_of(prefix)
  return prefix .. 'transactions', prefix .. 'transactions:part:'
end

-- The last transactions of a user, and the name of this one. Each user has a hash: no user makes others forgotten.
local function last_key(prefix, name)
  local user, own = name:match('^(.*)/([^/]*)$')
  return prefix .. 'transactions:last:' .. user, own
end

-- The parts of a name that wait: number and part, with a slash between.
local function own_parts(prefix, name)
  return prefix .. 'transactions:of:' .. name
end

local function last_of(prefix, name)
  local last = redis.call('HGET', last_key(prefix, name))
  return last and tonumber(last:match('^%d+')) or -1
end

local function drop_part(prefix, part)
  local parts, chunks = keys_of(prefix)
  local later, counts, bytes = prefix .. 'later', {}, 0
  for _, id in ipairs(redis.call('LRANGE', chunks .. part, 0, -1)) do
    local message = take_later(later, id, counts)
    bytes = bytes + (message and #message or 0)
  end
  redis.call('DEL', chunks .. part)
  redis.call('ZREM', parts, part)
  local name, own = part:match('^(.*)/(%d+/[^/]*)$')
  redis.call('SREM', own_parts(prefix, name), own)
  redis.call('HINCRBY', later .. ':state', 'b', -bytes)
  count_later(later, counts)
end

register('stage', {}, function(prefix, name, number, part, chunk, publisher, message, lifetime, most, most_bytes,
    most_of_tenant)
  if last_of(prefix, name) >= tonumber(number) then
    return {'committed'}
  end
  local parts, chunks = keys_of(prefix)
  local later, full_part = prefix .. 'later', name .. '/' .. number .. '/' .. part
  local held = redis.call('LLEN', chunks .. full_part)
  if tonumber(chunk) ~= held then
    return {tonumber(chunk) < held and 'again' or 'gap'}
  end
  local stored = wills.pack(publisher, message)
  local tenant = tenant_later(stored)
  if redis.call('ZCARD', later) >= tonumber(most)
      or held == 0 and redis.call('SCARD', own_parts(prefix, name)) >= PARTS
      or tonumber(redis.call('HGET', later .. ':state', 'b') or 0) + #stored > tonumber(most_bytes)
      or tenant and tonumber(most_of_tenant) > 0
        and tonumber(redis.call('HGET', later .. ':tenants', tenant) or 0) >= tonumber(most_of_tenant) then
    return {'full'}
  end
  local id = string.format('%016.0f', redis.call('INCR', prefix .. 'epoch'))
  redis.call('ZADD', later, '+inf', id)
  redis.call('HSET', later .. ':messages', id, stored)
  redis.call('HINCRBY', later .. ':state', 'b', #stored)
  if tenant then
    count_later(later, {[tenant] = 1})
  end
  redis.call('RPUSH', chunks .. full_part, id)
  redis.call('SADD', own_parts(prefix, name), number .. '/' .. part)
  redis.call('ZADD', parts, string.format('%.0f', clock(prefix) + tonumber(lifetime)), full_part)
  return {'ok'}
end)

-- Forget the names whose last commits are the oldest.
local function forget_some(committed)
  local found, names = redis.call('HGETALL', committed), {}
  for i = 1, #found, 2 do
    names[#names + 1] = {found[i], tonumber(found[i + 1]:match('%d+$'))}
  end
  table.sort(names, function(one, other) return one[2] < other[2] end)
  for i = 1, REMEMBERED / 10 do
    redis.call('HDEL', committed, names[i][1])
  end
end

register('commit_transaction', {'allow-oom'}, function(prefix, name, number, parts)
  if last_of(prefix, name) >= tonumber(number) then
    return {'committed'}
  end
  local staged, chunks = keys_of(prefix)
  local later, beginning = prefix .. 'later', name .. '/' .. number .. '/'
  local listed = cmsgpack.unpack(parts)
  for i = 1, #listed, 2 do
    local ids = redis.call('LRANGE', chunks .. beginning .. listed[i], 0, -1)
    local is_whole = #ids == listed[i + 1]
    for _, id in ipairs(ids) do
      is_whole = is_whole and redis.call('HEXISTS', later .. ':messages', id) == 1
    end
    if not is_whole then
      return {'missing'}
    end
  end
  local now = string.format('%.0f', ordered_time(prefix))
  for i = 1, #listed, 2 do
    local part = beginning .. listed[i]
    for _, id in ipairs(redis.call('LRANGE', chunks .. part, 0, -1)) do
      redis.call('ZADD', later, now, id)
    end
    redis.call('DEL', chunks .. part)
    redis.call('ZREM', staged, part)
    redis.call('SREM', own_parts(prefix, name), number .. '/' .. listed[i])
  end
  -- Parts of attempts that failed, of this transaction and of earlier ones.
  for _, own in ipairs(redis.call('SMEMBERS', own_parts(prefix, name))) do
    if tonumber(own:match('^%d+')) <= tonumber(number) then
      drop_part(prefix, name .. '/' .. own)
    end
  end
  local committed, own = last_key(prefix, name)
  redis.call('HSET', committed, own, number .. ' ' .. now)
  if redis.call('HLEN', committed) > REMEMBERED then
    forget_some(committed)
  end
  publish(prefix .. 'all', cmsgpack.pack({'later', 0}))
  return {'ok'}
end)

register('expire_staged', {'allow-oom'}, function(prefix)
  local parts = keys_of(prefix)
  for _, part in ipairs(redis.call('ZRANGEBYSCORE', parts, '-inf', clock(prefix), 'LIMIT', 0, 10)) do
    drop_part(prefix, part)
  end
  return 'ok'
end)

register('staged_parts', {'no-writes'}, function(prefix, most)
  local parts, chunks = keys_of(prefix)
  local found, rows, time = redis.call('ZRANGE', parts, 0, most - 1, 'WITHSCORES'), {}, clock(prefix)
  for i = 1, #found, 2 do
    local ids, bytes = redis.call('LRANGE', chunks .. found[i], 0, -1), 0
    for _, id in ipairs(ids) do
      bytes = bytes + redis.call('HSTRLEN', prefix .. 'later:messages', id)
    end
    rows[#rows + 1] = {found[i], #ids, bytes, tonumber(found[i + 1]) - time}
  end
  return rows
end)
