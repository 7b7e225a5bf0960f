-- Messages of shared subscriptions of other shards: they come to queues of this shard, and go back. A message on its
-- way back has the form of a will that is due: a node writes it to the shard of its group, and settles it here.

local register = library.register
local OFFER = once.OFFER
local assignments_of, has_key, key_of = backlog.assignments_of, backlog.has_key, backlog.key_of
local body_of = backlog.body_of

local AUTHOR = '\0'           -- the author of such a will begins with this; place u64 and group follow
local PLACE = '<I4I4'

local function pack_place(place)
  return struct.pack(PLACE, place % 4294967296, math.floor(place / 4294967296))
end

-- A few bytes that depend on topic name, properties and payload: a Redis that has lost data uses places once more.
local function digest_of(message)
  local body = body_of(message)
  local content = body:sub((wills.topic_place(body, 1)))
  return (redis.sha1hex(content):sub(1, 8):gsub('..', function(digits)
    return string.char(tonumber(digits, 16))
  end))
end

-- The number of the message of a group that comes to the queue of a session of another shard.
local function offer_of(cid, group, place, message)
  return OFFER .. pack_place(place) .. digest_of(message) .. struct.pack('<H', #cid) .. cid .. group
end

-- The client id, group, place and digest of such a number.
local function open_offer(number)
  local low, high = struct.unpack(PLACE, number, 2)
  local size = struct.unpack('<H', number, 14)
  return number:sub(16, 15 + size), number:sub(16 + size), high * 4294967296 + low, number:sub(10, 13)
end

-- A message leaves the queue of a session for its group.
local function send_back(prefix, cid, group, place, message)
  local id = string.format('%.0f', redis.call('INCR', prefix .. 'epoch'))
  redis.call('HSET', prefix .. 'delayed:wills', id, wills.pack(cid, message, AUTHOR .. pack_place(place) .. group))
  redis.call('ZADD', prefix .. 'delayed', 0, id)
  local key = key_of(message)
  if key then
    redis.call('HSET', prefix .. 'returning', id, key .. group)
  end
end

-- Whether a will is a message on its way back whose node may not have ended its assignment yet.
local function must_wait(prefix, will)
  local author = wills.author_of(will)
  if author:sub(1, 1) ~= AUTHOR then
    return false
  end
  local low, high = struct.unpack(PLACE, author, 2)
  local message = will:sub(wills.message_of(will))
  local number = offer_of(wills.client_of(will), author:sub(10), high * 4294967296 + low, message)
  return redis.call('HEXISTS', prefix .. 'once', number) == 1
end

-- Whether a node has the assignment of a message that comes to a queue of another shard.
local function is_needed(prefix, number)
  local _, group, place, digest = open_offer(number)
  local function has(node)
    local message = redis.call('HGET', assignments_of(prefix, node, group), place)
    return message and digest_of(message) == digest
  end
  for _, key in ipairs({'nodes', 'in_doubt'}) do
    for _, node in ipairs(redis.call(key == 'nodes' and 'HKEYS' or 'SMEMBERS', prefix .. key)) do
      if has(node) then
        return true
      end
    end
  end
  return false
end

-- A session has messages of this key in its queue, or some are on their way back.
register('has_key', {'no-writes', 'allow-oom'}, function(prefix, cid, group, key)
  if has_key(prefix, cid, group, key, {}) then
    return 1
  end
  for _, of in ipairs(redis.call('HVALS', prefix .. 'returning')) do
    if of == key .. group then
      return 1
    end
  end
  return 0
end)

register('offered', {'no-writes', 'allow-oom'}, function(prefix, numbers)
  local found = {}
  for i, number in ipairs(cmsgpack.unpack(numbers)) do
    found[i] = redis.call('HEXISTS', prefix .. 'once', number)
  end
  return found
end)

register('offered_by', {'no-writes', 'allow-oom'}, function(prefix, dead)
  if redis.call('HEXISTS', prefix .. 'nodes', dead) == 1 then
    return {'lives'}
  end
  local found = {}
  for _, number in ipairs(redis.call('SMEMBERS', prefix .. 'once:orphans')) do
    if number:sub(1, 1) == OFFER and redis.call('HGET', prefix .. 'once', number) == dead then
      local cid, group, place, digest = open_offer(number)
      found[#found + 1] = {group, place, cid, digest}
    end
  end
  return {'ok', found}
end)

register('in_doubt', {'no-writes', 'allow-oom'}, function(prefix)
  return redis.call('SMEMBERS', prefix .. 'in_doubt')
end)

once.is_offer_needed = is_needed
return {digest_of = digest_of, must_wait = must_wait, send_back = send_back}
