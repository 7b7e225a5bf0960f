-- The messages of shared subscriptions: their heads, their entries in queues of sessions, and those that wait. A group
-- is named by `$share/NAME/FILTER`. A message waits in the group; or it is assigned to a node, which gives it to a
-- subscriber of its own; or it is in the queue of a subscriber with a persistent session. It is at one of these places
-- after every function.

local AT_ONCE = library.AT_ONCE
local topic_place = wills.topic_place
local add_waiting = tenants.add_waiting
local session_of, slice = packed_sessions.of, packed_sessions.slice

-- New messages that wait are in a list, the last one with the place `n` of the group. Those that have come back wait in
-- front of it, each with its place; so do all of a group that keeps only the newest message of each topic. A message of
-- the list that has expired is dropped when the group is full: an empty text keeps its place, and the field `e` of the
-- group counts these texts.
local backlog = {}

-- The messages that have come back, the entries of the list, and how many of these are empty.
function backlog.counts(prefix, group)
  local listed = redis.call('LLEN', prefix .. 'gw:' .. group)
  return redis.call('ZCARD', prefix .. 'gq:' .. group), listed,
    listed > 0 and tonumber(redis.call('HGET', prefix .. 'g:' .. group, 'e') or 0) or 0
end

-- How many messages wait.
function backlog.size(prefix, group)
  local back, listed, empty = backlog.counts(prefix, group)
  return back + listed - empty
end

-- The list has lost this number of empty texts, or got them, if it is negative.
function backlog.lose_empty(prefix, group, count)
  if count ~= 0 then
    redis.call('HINCRBY', prefix .. 'g:' .. group, 'e', -count)
  end
end

-- Remove the first message of the list; nil: it has none.
function backlog.pop(prefix, group)
  local message, empty = nil, 0
  repeat
    message = redis.call('LPOP', prefix .. 'gw:' .. group)
    empty = empty + (message == '' and 1 or 0)
  until message ~= ''
  backlog.lose_empty(prefix, group, empty)
  return message
end

local function is_group(name)
  return name:find('^%$share/[^/]+/.') ~= nil
end

-- The key of the messages of a group that are assigned to a node. The set `gl:` of the node has the groups with some.
local function assignments_of(prefix, node, group)
  return prefix .. 'gl:' .. node .. ' ' .. group
end

-- A message of a group may have heads. In a group with an order its key is first: 0x50 (0x51: a session that is
-- elsewhere has others with the key), hash of the key u32, number of the assignment as a double. Then perhaps its
-- failures: 0x40, deliveries without success u16, reason code of the last u8.
local KEY_HEAD = 13

local FIRST_HEAD = 64         -- the first byte of a message with heads is this or greater

-- The message's key as 4 bytes, or nil.
local function key_of(message)
  return math.floor(message:byte(1) / 16) == 5 and message:sub(2, 5) or nil
end

-- The key head and the rest.
local function split_key(message)
  if key_of(message) then
    return message:sub(1, KEY_HEAD), message:sub(KEY_HEAD + 1)
  end
  return '', message
end

-- The message without heads.
local function body_of(message)
  local _, rest = split_key(message)
  return math.floor(rest:byte(1) / 16) == 4 and rest:sub(5) or rest
end

-- The bytes that a packet of QoS 0 with the message has at least, for a client of MQTT 5.0.
function backlog.packet_size(message)
  local body = body_of(message)
  local head = topic_place(body, 1) - 1
  return #body - head + (head == 15 and 10 or 5)     -- a deadline is an expiry of 5 bytes there
end

-- The topic name of a message.
local function topic_of(message)
  message = body_of(message)
  return message:sub(topic_place(message, 1))
end

-- For groups that keep only the newest message of each topic: `gv:` has the place of the one that waits, and its age,
-- which is the place that its content would have by itself. A topic with many messages is not put off by each.
-- Returns nil if none waits, and notes `message`. Else the one that waits has the content of `message` now if that is
-- the newer, and the number of bytes that it has more is returned.
local function supersede(prefix, group, place, message)
  local topic, messages = topic_of(message), prefix .. 'gm:' .. group
  local at, age = (redis.call('HGET', prefix .. 'gv:' .. group, topic) or ''):match('^(%d+) (%d+)$')
  local field = string.format('%.0f', place)
  if not at or not redis.call('ZSCORE', prefix .. 'gq:' .. group, at) then
    redis.call('HSET', prefix .. 'gv:' .. group, topic, field .. ' ' .. field)
    return nil
  end
  if tonumber(age) > place then
    return 0
  end
  local more = #message - redis.call('HSTRLEN', messages, at)
  redis.call('HSET', messages, at, message)
  redis.call('HSET', prefix .. 'gv:' .. group, topic, at .. ' ' .. field)
  return more
end

-- An entry of a queue that is from a group: the group, its place in it, the message with its heads, and whether another
-- shard has the group; or nil.
local function part_of_group(value)
  local first = value:byte(1)
  if not first or math.floor(first / 16) ~= 3 or first % 2 == 0 then
    return nil
  end
  local low, high, length = struct.unpack('<I4I4H', value, 2)
  local group = value:sub(12, 11 + length)
  local rest = 12 + #group
  if math.floor(first / 4) % 2 == 1 then
    rest = rest + 2 + struct.unpack('<H', value, rest)
  end
  return group, high * 4294967296 + low, value:sub(rest), math.floor(first / 8) % 2 == 1
end

-- Call `visit` for the entries of a session's queue that are from groups and not done: number, group, place, message,
-- whether another shard has the group.
local function each_of_groups(session, visit)
  local head = session.head
  local number, states = head, queues.states_of(session)
  while true do
    local values = slice(session, number - head, number - head + AT_ONCE - 1)
    for i = 1, #values do
      local group, place, message, elsewhere = part_of_group(values[i])
      if group and (session.marks == 0 or redis.call('HGET', states, number) ~= 'd') then
        visit(number, group, place, message, elsewhere)
      end
      number = number + 1
    end
    if #values < AT_ONCE then
      return
    end
  end
end

-- Whether a session has messages of this key in its queue. `known`: for this call, client id -> its groups and keys.
local function has_key(prefix, cid, group, key, known)
  if not known[cid] then
    known[cid] = {}
    local session = session_of(prefix, cid)
    if session then
      each_of_groups(session, function(_, of, _, message)
        known[cid][of .. (key_of(message) or '')] = true
      end)
    end
  end
  return known[cid][group .. key] or false
end

-- Keep a message that waits, apart from the list.
local function keep(prefix, group, place, message)
  local field = string.format('%.0f', place)
  redis.call('HSET', prefix .. 'gm:' .. group, field, message)
  redis.call('ZADD', prefix .. 'gq:' .. group, field, field)
end

-- A message with this deadline was added. `key`: of the group.
function backlog.note_deadline(key, deadline)
  local field = redis.call('HGET', key, 'y')
  local changed = field and queues.looked_with(field, deadline, 0)
  if changed then
    redis.call('HSET', key, 'y', changed)
  end
end

-- Put a message back to its place, where it waits.
local function put_back(prefix, group, place, message)
  if redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 then
    return
  end
  local key = prefix .. 'g:' .. group
  local deadline = queues.deadline_of(message)
  if deadline then
    backlog.note_deadline(key, deadline)
  end
  local more = not key_of(message) and redis.call('HGET', key, 'o:last_value') == '1'
    and supersede(prefix, group, place, message)
  if not more then
    keep(prefix, group, place, message)
    more = #message
  end
  add_waiting(prefix, group, more)
end

backlog.FIRST_HEAD = FIRST_HEAD
backlog.KEY_HEAD = KEY_HEAD
backlog.body_of = body_of
backlog.each_of_groups = each_of_groups
backlog.has_key = has_key
backlog.is_group = is_group
backlog.keep = keep
backlog.key_of = key_of
backlog.assignments_of = assignments_of
backlog.part_of_group = part_of_group
backlog.put_back = put_back
backlog.split_key = split_key
backlog.supersede = supersede
backlog.topic_of = topic_of
return backlog
