-- Shared subscriptions: the messages of each group, and the node that has each. A group is named by `$share/NAME/FILTER`.
-- A message waits in the group, or is leased to a node, which gives it to a member of its own; or it is in the queue of
-- a member with a persistent session. It is at one of these places after every function.

-- New messages that wait are in a list, the last one with the place `n` of the group. Those that have come back wait in
-- front of it, each with its place; so do all of a group that keeps only the newest message of each topic.

local QUEUED = 100000         -- messages that are leased to one node beyond its room, unless the group is declared otherwise

local function is_group(name)
  return name:find('^%$share/[^/]+/.') ~= nil
end

-- The key of the messages of a group that are leased to a node. The set `gl:` of the node has the groups with some.
local function leases_of(prefix, node, group)
  return prefix .. 'gl:' .. node .. ' ' .. group
end

-- A message of a group may have heads. In a group with an order its key is first: 0x50 (0x51: a session that is elsewhere
-- has others with the key), hash of the key u32, number of the lease as a double. Then perhaps its failures: 0x40,
-- deliveries without success u16, reason code of the last u8.
local KEY_HEAD = 13

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

-- The topic name of a message.
local function topic_of(message)
  message = body_of(message)
  local head = 3
  if math.floor(message:byte(1) / 16) == 2 then
    head = math.floor(message:byte(1) / 8) % 2 == 1 and 15 or 7
  end
  return message:sub(head + 1, head + struct.unpack('<H', message, 2))
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

-- The nodes with room for messages of a group, in order of their virtual time; they are read once per call, and written
-- by `end_rotation`. `strategy`, `most`: settings of the group.
local function rotation_of(prefix, group, strategy, most)
  local found, fields = redis.call('ZRANGE', prefix .. 'gr:' .. group, 0, -1, 'WITHSCORES'), {}
  local rotation = {group = group, nodes = {}, room = 0, keyed = (strategy or 'rotation') ~= 'rotation', most = most}
  for i = 1, #found, 2 do
    fields[#fields + 1] = found[i]
    fields[#fields + 1] = 'w:' .. found[i]
    fields[#fields + 1] = 't:' .. found[i]
  end
  local values = in_parts('HMGET', prefix .. 'go:' .. group, fields)
  for i = 1, #found, 2 do
    local node = #rotation.nodes
    local room, weight, total = tonumber(values[3 * node + 1] or 1), values[3 * node + 2], values[3 * node + 3]
    rotation.nodes[node + 1] = {name = found[i], time = tonumber(found[i + 1]), room = room,
      step = 1 / tonumber(weight or 1), total = tonumber(total or 0), leases = {}}
    rotation.room = rotation.room + room
  end
  return rotation
end

-- Order by key. While messages of a key are with a node, or it has given some to a session that has not finished them, the
-- key is bound to that node: all that follow are leased to it, whether it has room or not, and it keeps their order.
-- The binding is a field of `gk:<group>`: number of the last lease, 1 = the node gives the key up, node or nothing, client
-- id of the persistent session that has got the last message, if any.
local function binding_of(prefix, group, key)
  local number, closing, node, cid = (redis.call('HGET', prefix .. 'gk:' .. group, key) or ''):match(
    '^(%d+) ([01]) (%S*) (.*)$')
  return number and {number = number, closing = closing == '1', node = node, cid = cid}
end

local function bind(prefix, group, key, bound)
  redis.call('HSET', prefix .. 'gk:' .. group, key, string.format('%s %d %s %s', bound.number, bound.closing and 1 or 0,
    bound.node, bound.cid))
end

-- The binding without its node; it stays for the sake of its session, if there is one.
local function unbind(prefix, group, key, bound)
  if bound.cid == '' then
    redis.call('HDEL', prefix .. 'gk:' .. group, key)
  else
    bound.node, bound.closing = '', false
    bind(prefix, group, key, bound)
  end
end

-- An entry of a queue that is from a group: the group, its place in it, and the message with its heads; or nil.
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
  return group, high * 4294967296 + low, value:sub(rest)
end

-- Call `visit` for the entries of a session's queue that are from groups and not done: number, group, place, message.
local function each_of_groups(prefix, cid, visit)
  local number = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'h') or 0)
  local head = number
  while true do
    local values = redis.call('LRANGE', prefix .. 'q:' .. cid, number - head, number - head + AT_ONCE - 1)
    for i = 1, #values do
      local group, place, message = part_of_group(values[i])
      if group and redis.call('HGET', prefix .. 'st:' .. cid, number) ~= 'd' then
        visit(number, group, place, message)
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
    each_of_groups(prefix, cid, function(_, of, _, message)
      known[cid][of .. (key_of(message) or '')] = true
    end)
  end
  return known[cid][group .. key] or false
end

-- The node of a binding as part of the rotation; nil if it has ended.
local function bound_node(prefix, rotation, name)
  if name == '' then
    return nil
  end
  for _, node in ipairs(rotation.nodes) do
    if node.name == name then
      return node
    end
  end
  if not live(prefix, name) then
    return nil
  end
  local total = redis.call('HGET', prefix .. 'go:' .. rotation.group, 't:' .. name)
  local node = {name = name, room = 0, total = tonumber(total or 0), leases = {}}
  rotation.nodes[#rotation.nodes + 1] = node
  return node
end

-- Whether a node has as many leases as messages of the group may wait.
local function is_loaded(prefix, rotation, node)
  node.count = node.count or redis.call('HLEN', leases_of(prefix, node.name, rotation.group))
  return node.count + #node.leases / 2 >= rotation.most
end

-- The node with room whose turn it is, or nil.
local function next_node(rotation)
  local node = nil
  for _, other in ipairs(rotation.nodes) do
    if other.room > 0 and (node == nil or other.time < node.time) then
      node = other
    end
  end
  return node
end

-- The node that gets a message with a key, and the message with the head of its lease; or nil.
local function node_of_key(prefix, rotation, key, message)
  local bound, elsewhere = binding_of(prefix, rotation.group, key), 0
  local node = bound and bound_node(prefix, rotation, bound.node)
  if node and (bound.closing or is_loaded(prefix, rotation, node)) then
    return nil
  end
  if not node then
    node = next_node(rotation)
    if not node then
      return nil
    end
    rotation.known = rotation.known or {}
    local cid = bound and bound.cid or ''
    if cid ~= '' and has_key(prefix, cid, rotation.group, key, rotation.known) then
      elsewhere = 1
    else
      cid = ''
    end
    bound = {node = node.name, closing = false, cid = cid}
  end
  rotation.number = (rotation.number or tonumber(redis.call('HGET', prefix .. 'g:' .. rotation.group, 'l') or 0)) + 1
  bound.number = string.format('%.0f', rotation.number)
  bind(prefix, rotation.group, key, bound)
  return node, string.char(80 + elsewhere) .. key .. struct.pack('<d', rotation.number) .. message:sub(KEY_HEAD + 1)
end

-- Lease a message to the node with room whose turn it is, or to that of its key. `told`: node -> {group, place, message,
-- ...}; those of a group with an order are in `told[1]`, as all of them are sent on one channel.
-- Returns whether there is a node.
local function lease(prefix, rotation, place, message, told)
  local node, key = nil, rotation.keyed and key_of(message)
  if key then
    node, message = node_of_key(prefix, rotation, key, message)
  else
    node = next_node(rotation)
  end
  if node == nil then
    return false
  end
  rotation.used = true
  if node.room > 0 then
    rotation.now = node.time
    node.time, node.room, rotation.room = node.time + node.step, node.room - 1, rotation.room - 1
  end
  node.leases[#node.leases + 1] = place
  node.leases[#node.leases + 1] = message
  if rotation.keyed then
    told[1] = told[1] or {}
    told = told[1]
  end
  local list = told[node.name]
  if not list then
    list = {}
    told[node.name] = list
  end
  list[#list + 1] = rotation.group
  list[#list + 1] = place
  list[#list + 1] = message
  return true
end

local function end_rotation(prefix, rotation, told)
  local group = rotation.group
  if not rotation.used then
    return
  end
  if rotation.keyed then
    told = told[1]
  end
  for _, node in ipairs(rotation.nodes) do
    if #node.leases > 0 then
      local list, total = told[node.name], node.total + #node.leases / 2
      list[#list + 1] = group
      list[#list + 1] = 0
      list[#list + 1] = total
      in_parts('HSET', leases_of(prefix, node.name, group), node.leases, 2)
      redis.call('SADD', prefix .. 'gl:' .. node.name, group)
      redis.call('HSET', prefix .. 'go:' .. group, 't:' .. node.name, total)
      if node.time then
        redis.call('HSET', prefix .. 'go:' .. group, node.name, node.room)
      end
      if node.room > 0 then
        redis.call('ZADD', prefix .. 'gr:' .. group, node.time, node.name)
      elseif node.time then
        redis.call('ZREM', prefix .. 'gr:' .. group, node.name)
      end
    end
  end
  if rotation.now then
    redis.call('HSET', prefix .. 'g:' .. group, 'v', rotation.now)
  end
  if rotation.number then
    redis.call('HSET', prefix .. 'g:' .. group, 'l', string.format('%.0f', rotation.number))
  end
end

-- Messages that wait: those that have come back, and the others.
local function waiting_in(prefix, group)
  return redis.call('ZCARD', prefix .. 'gq:' .. group), redis.call('LLEN', prefix .. 'gw:' .. group)
end

-- Lease messages that have come back. Returns their bytes.
local function dispatch_back(prefix, group, rotation, told)
  local found = redis.call('ZPOPMIN', prefix .. 'gq:' .. group, math.min(rotation.room, AT_ONCE))
  local notes = redis.call('EXISTS', prefix .. 'gv:' .. group) == 1
  local places, bytes = {}, 0
  for i = 1, #found, 2 do
    places[#places + 1] = found[i]
  end
  local messages = redis.call('HMGET', prefix .. 'gm:' .. group, unpack(places))
  redis.call('HDEL', prefix .. 'gm:' .. group, unpack(places))
  for i = 1, #places do
    local message = messages[i]
    if message then
      bytes = bytes + #message
      if notes then
        redis.call('HDEL', prefix .. 'gv:' .. group, topic_of(message))
      end
      lease(prefix, rotation, tonumber(places[i]), message, told)
    end
  end
  return bytes
end

-- Lease messages of the list, whose first one has this place. Returns their bytes.
local function dispatch_listed(prefix, group, rotation, first, told)
  local messages = redis.call('LPOP', prefix .. 'gw:' .. group, math.min(rotation.room, AT_ONCE))
  local bytes = 0
  for i = 1, #messages do
    bytes = bytes + #messages[i]
    lease(prefix, rotation, first + i - 1, messages[i], told)
  end
  return bytes
end

-- Lease what waits in a group with an order, one after the other until one must wait. `last`: place of the last of the
-- list. Returns the bytes.
local function dispatch_keyed(prefix, group, rotation, last, told)
  local bytes = 0
  while true do
    local back = redis.call('ZRANGE', prefix .. 'gq:' .. group, 0, 0)[1]
    local message = back and redis.call('HGET', prefix .. 'gm:' .. group, back)
      or not back and redis.call('LINDEX', prefix .. 'gw:' .. group, 0)
    local place = tonumber(back or last - redis.call('LLEN', prefix .. 'gw:' .. group) + 1)
    if not message or not lease(prefix, rotation, place, message, told) then
      return bytes
    end
    bytes = bytes + #message
    if back then
      redis.call('ZREM', prefix .. 'gq:' .. group, back)
      redis.call('HDEL', prefix .. 'gm:' .. group, back)
      redis.call('HDEL', prefix .. 'gv:' .. group, topic_of(message))
    else
      redis.call('LPOP', prefix .. 'gw:' .. group)
    end
  end
end

-- Lease what waits to nodes with room.
local function dispatch(prefix, group, told)
  local back, listed = waiting_in(prefix, group)
  if back + listed == 0 then
    return
  end
  local state = redis.call('HMGET', prefix .. 'g:' .. group, 'n', 'o:strategy', 'o:max_queued_messages')
  local last = tonumber(state[1] or 0)
  local rotation, bytes = rotation_of(prefix, group, state[2], tonumber(state[3] or QUEUED)), 0
  if rotation.keyed then
    bytes = dispatch_keyed(prefix, group, rotation, last, told)
  else
    while back > 0 and rotation.room > 0 do
      bytes = bytes + dispatch_back(prefix, group, rotation, told)
      back = redis.call('ZCARD', prefix .. 'gq:' .. group)
    end
    while listed > 0 and rotation.room > 0 do
      bytes = bytes + dispatch_listed(prefix, group, rotation, last - listed + 1, told)
      listed = redis.call('LLEN', prefix .. 'gw:' .. group)
    end
  end
  if bytes > 0 then
    redis.call('HINCRBY', prefix .. 'g:' .. group, 'b', -bytes)
    end_rotation(prefix, rotation, told)
  end
end

-- Keep a message that waits, apart from the list.
local function keep(prefix, group, place, message)
  local field = string.format('%.0f', place)
  redis.call('HSET', prefix .. 'gm:' .. group, field, message)
  redis.call('ZADD', prefix .. 'gq:' .. group, field, field)
end

-- Put a message back to its place, where it waits.
local function put_back(prefix, group, place, message)
  if redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 then
    return
  end
  local key = prefix .. 'g:' .. group
  local more = not key_of(message) and redis.call('HGET', key, 'o:last_value') == '1'
    and supersede(prefix, group, place, message)
  if not more then
    keep(prefix, group, place, message)
    more = #message
  end
  redis.call('HINCRBY', key, 'b', more)
end

-- Leases end. Those that are not the node's are left alone.
local function end_leases(prefix, node, group, places)
  local leases = leases_of(prefix, node, group)
  in_parts('HDEL', leases, places)
  if redis.call('EXISTS', leases) == 0 then
    redis.call('SREM', prefix .. 'gl:' .. node, group)
  end
end

-- A lease ends, and the message waits again.
local function return_lease(prefix, node, group, place)
  local message = redis.call('HGET', leases_of(prefix, node, group), place)
  if message then
    end_leases(prefix, node, group, {place})
    put_back(prefix, group, place, message)
  end
end

local function append(lists, key, value)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[#list + 1] = value
end

-- Send leases to their nodes; returns those of the caller, but none of groups with an order.
local function tell_leases(prefix, node, told)
  for other, list in pairs(told[1] or {}) do
    tell(prefix, other, 'leased', list)
  end
  told[1] = nil
  for other, list in pairs(told) do
    if other ~= node then
      tell(prefix, other, 'leased', list)
    end
  end
  return told[node] or {}
end
