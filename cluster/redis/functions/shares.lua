-- Shared subscriptions: the messages of each group, and the node that has each. A group is named by `$share/NAME/FILTER`.
-- A message waits in the group, or is leased to a node, which gives it to a member of its own; or it is in the queue of
-- a member with a persistent session. It is at one of these places after every function.

-- New messages that wait are in a list, the last one with the place `n` of the group. Those that have come back wait in
-- front of it, each with its place; so do all of a group that keeps only the newest message of each topic.

-- A group that is declared has the member `d:`, so that it exists without others. Its settings are in the hash `groups`,
-- and one by one in the group's own hash, as `o:` and the name.
local DECLARED = 'd:'
local REDISPATCH = 5000       -- milliseconds, unless the nodes are configured otherwise
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

-- What a call needs of a group to accept messages; `list`: see `share`.
local function state_of(prefix, group, list)
  if redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 then
    return false
  end
  local found = redis.call('HMGET', prefix .. 'g:' .. group, 'n', 'b', 'o:max_queued_messages', 'o:max_queued_bytes',
    'o:when_full', 'o:last_value', 'o:strategy')
  local back, listed = waiting_in(prefix, group)
  local most = tonumber(found[3] or list[1])
  return {
    group = group,
    place = tonumber(found[1] or 0),
    waiting = back + listed,
    bytes = tonumber(found[2] or 0),
    most = most,
    most_bytes = tonumber(found[4] or list[2]),
    drop_old = (found[5] or (list[3] == 1 and 'drop-old')) == 'drop-old',
    last_value = found[6] == '1',
    rotation = back + listed == 0 and rotation_of(prefix, group, found[7], most),
    added = {},
  }
end

-- Write the messages that were added to a group's list.
local function write_added(prefix, state)
  in_parts('RPUSH', prefix .. 'gw:' .. state.group, state.added)
  state.added = {}
end

-- Drop the message that waits longest. Returns its bytes.
local function drop_oldest(prefix, state)
  local group = state.group
  local place = redis.call('ZPOPMIN', prefix .. 'gq:' .. group)[1]
  if not place then
    write_added(prefix, state)
    return #redis.call('LPOP', prefix .. 'gw:' .. group)
  end
  local message = redis.call('HGET', prefix .. 'gm:' .. group, place)
  redis.call('HDEL', prefix .. 'gm:' .. group, place)
  if state.last_value then
    redis.call('HDEL', prefix .. 'gv:' .. group, topic_of(message))
  end
  return #message
end

-- A message is to wait: make room for it. Returns the number of messages that are dropped for it, and whether it may wait.
local function make_room(prefix, state, size)
  local dropped = 0
  while state.drop_old and state.waiting > 0
      and (state.waiting >= state.most or state.bytes + size > state.most_bytes) do
    state.bytes = state.bytes - drop_oldest(prefix, state)
    state.waiting, dropped = state.waiting - 1, dropped + 1
  end
  return dropped, state.waiting == 0 or (state.waiting < state.most and state.bytes + size <= state.most_bytes)
end

-- A message that no node has room for. Returns the number of dropped messages.
local function wait(prefix, state, message)
  local place = state.place + 1
  local more = state.last_value and supersede(prefix, state.group, place, message)
  if more then
    state.place, state.bytes = place, state.bytes + more
    return 0
  end
  local dropped, fits = make_room(prefix, state, #message)
  if not fits then
    if state.last_value then
      redis.call('HDEL', prefix .. 'gv:' .. state.group, topic_of(message))
    end
    return dropped + 1
  end
  state.place, state.waiting, state.bytes = place, state.waiting + 1, state.bytes + #message
  if state.last_value then
    keep(prefix, state.group, place, message)
  else
    state.added[#state.added + 1] = message
  end
  return dropped
end

-- New messages. `list`: max messages, max bytes, 1 = drop the oldest, then group and place in `messages`, in turn.
-- Returns the number of dropped messages.
local function share(prefix, messages, list, told)
  local dropped, states = 0, {}
  for i = 4, #list, 2 do
    local group, message = list[i], messages[list[i + 1]]
    local state = states[group]
    if state == nil then
      state = state_of(prefix, group, list)
      states[group] = state
    end
    if state and state.rotation and state.waiting == 0
        and lease(prefix, state.rotation, state.place + 1, message, told) then
      state.place = state.place + 1
    elseif state then
      dropped = dropped + wait(prefix, state, message)
    end
  end
  for group, state in pairs(states) do
    if state then
      write_added(prefix, state)
      redis.call('HSET', prefix .. 'g:' .. group, 'n', string.format('%.0f', state.place),
        'b', string.format('%.0f', state.bytes))
      if state.rotation then
        end_rotation(prefix, state.rotation, told)
      end
    end
  end
  return dropped
end

-- The message, with one more failure. `code`: reason code of its receiver, 0 = it was not acknowledged.
local function failed(message, code)
  local head, rest = split_key(message)
  local count = math.floor(rest:byte(1) / 16) == 4 and struct.unpack('<H', rest, 2) or 0
  return head .. struct.pack('<BHB', 64, math.min(count + 1, 65535), code) .. body_of(rest)
end

-- Mark entries of a queue as done; `done` has their numbers.
local function finish_entries(prefix, cid, done)
  local states = prefix .. 'st:' .. cid
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'h', 'b', 'z')
  local head, bytes, marks = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
  for i = 1, #done do
    marks = marks + redis.call('HSET', states, done[i], 'd')
  end
  drop_done(prefix, cid, head, head, bytes, marks)
end

-- A message comes from a node that has no lease of it: the node has it again if that is the node of its key. Else it waits.
local function take_from(prefix, node, group, place, message)
  local key = key_of(message)
  local bound = key and binding_of(prefix, group, key)
  if bound and bound.node == node then
    redis.call('HSET', leases_of(prefix, node, group), place, message)
    redis.call('SADD', prefix .. 'gl:' .. node, group)
  else
    put_back(prefix, group, place, message)
  end
end

-- A client has refused an entry of its session's queue: its message comes back, with one more failure. An entry that
-- is not there any more, or has another message, has come back in another way.
local function take_refused(prefix, node, cid, number, group, place, code)
  local head = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'h') or 0)
  if number < head or redis.call('HGET', prefix .. 'st:' .. cid, number) == 'd' then
    return
  end
  local value = redis.call('LINDEX', prefix .. 'q:' .. cid, number - head)
  local of, at, message = part_of_group(value or '')
  if of == group and at == place then
    finish_entries(prefix, cid, {number})
    take_from(prefix, node, group, place, failed(message, code))
  end
end

-- The node gives keys up: what it has of them waits again. Nothing happens to a key if a lease is under way to the node:
-- the node repeats this when it has that. Meanwhile it gets no more. `keys`: key -> number of the last lease that the node
-- has got.
local function close_keys(prefix, node, group, keys)
  local closed = {}
  for key, number in pairs(keys) do
    local bound = binding_of(prefix, group, key)
    if bound and bound.node == node and tonumber(bound.number) ~= number then
      bound.closing = true
      bind(prefix, group, key, bound)
    else
      closed[key] = true
      if bound and bound.node == node then
        unbind(prefix, group, key, bound)
      end
      tell(prefix, node, 'key_closed', group, key, number)
    end
  end
  local leases = redis.call('HGETALL', leases_of(prefix, node, group))
  for i = 1, #leases, 2 do
    if closed[key_of(leases[i + 1]) or ''] then
      return_lease(prefix, node, group, tonumber(leases[i]))
    end
  end
end

-- Keys of the caller that are held for a session that is elsewhere: send it those that need not be held any more.
-- `checks`: group, key, number of the caller, in turn.
local function check_keys(prefix, node, checks)
  local known = {}
  for i = 1, #checks, 3 do
    local group, key = checks[i], checks[i + 1]
    local bound = binding_of(prefix, group, key)
    if not (bound and bound.node == node and bound.cid ~= '' and has_key(prefix, bound.cid, group, key, known)) then
      tell(prefix, node, 'key_free', group, key, checks[i + 2])
    end
  end
end

-- A session has got the message of a lease.
local function note_session(prefix, node, group, place, cid)
  local key = key_of(redis.call('HGET', leases_of(prefix, node, group), place) or '\0')
  local bound = key and binding_of(prefix, group, key)
  if bound then
    bound.cid = cid
    bind(prefix, group, key, bound)
  end
end

-- Steps of messages between groups and nodes. `list`: kind, group, place, and more, in turn:
-- 'given', client id, incarnation: the block's pushes put the message into the session's queue;
-- 'back', '', 0: the node has no use for it; 'put', heads, place in `messages`: the message waits again;
-- 'failed', failures, 0: it was sent without success, and the node keeps it; 'dead', '', 0: this block has its dead
-- letter; 'refused', client id, queue number * 256 + reason code: a client refuses it;
-- with place 0: 'closed', key, number of the last lease that the node has got: see `close_keys`; 'check', key, a number of
-- the node: see `check_keys`.
-- Returns the groups to dispatch, and what `check_keys` needs.
local function move(prefix, node, messages, list)
  local finished, incarnations, waiting, checks = {}, {}, {}, {}
  local keyed, closing = {}, {}
  for i = 1, #list, 5 do
    local kind, group, place, cid, number = list[i], list[i + 1], list[i + 2], list[i + 3], list[i + 4]
    if kind == 'given' then
      if not incarnations[cid] then
        local key = prefix .. 's:' .. cid
        incarnations[cid] = tonumber(redis.call('HGET', key, 'x') or -1)
        if incarnations[cid] == number then
          redis.call('HSET', key, 'g', 1)
        end
      end
      if incarnations[cid] == number then
        if keyed[group] == nil then
          keyed[group] = redis.call('EXISTS', prefix .. 'gk:' .. group) == 1
        end
        if keyed[group] then
          note_session(prefix, node, group, place, cid)
        end
        append(finished, group, place)
      else
        return_lease(prefix, node, group, place)
        waiting[group] = true
      end
    else
      waiting[group] = true
      if kind == 'back' then
        return_lease(prefix, node, group, place)
      elseif kind == 'dead' then
        append(finished, group, place)
      elseif kind == 'failed' then
        local leases = leases_of(prefix, node, group)
        local message = redis.call('HGET', leases, place)
        if message then
          redis.call('HSET', leases, place, split_key(message) .. cid .. body_of(message))
        end
      elseif kind == 'refused' then
        take_refused(prefix, node, cid, math.floor(number / 256), group, place, number % 256)
      elseif kind == 'closed' then
        closing[group] = closing[group] or {}
        closing[group][cid] = number
      elseif kind == 'check' then
        checks[#checks + 1] = group
        checks[#checks + 1] = cid
        checks[#checks + 1] = number
      else
        take_from(prefix, node, group, place, cid .. messages[number])
      end
    end
  end
  for group, places in pairs(finished) do
    end_leases(prefix, node, group, places)
  end
  for group, keys in pairs(closing) do
    close_keys(prefix, node, group, keys)
  end
  return waiting, checks
end

-- Acknowledged messages, the room of the caller, and keys of which it has no message any more. `list`: {group, place,
-- ...}, {group, room, weight, total that the node knew, ...}, perhaps {group, key, number of its last lease, ...}.
local function settle(prefix, node, list, told)
  local done, rooms, idle = list[1], list[2], list[3] or {}
  local finished, waiting = {}, {}
  for i = 1, #done, 2 do
    append(finished, done[i], done[i + 1])
  end
  for group, places in pairs(finished) do
    end_leases(prefix, node, group, places)
  end
  for i = 1, #idle, 3 do
    local group, key = idle[i], idle[i + 1]
    local bound = binding_of(prefix, group, key)
    if bound and bound.node == node and tonumber(bound.number) == idle[i + 2] then
      redis.call('HDEL', prefix .. 'gk:' .. group, key)
      waiting[group] = true
    end
  end
  for i = 1, #rooms, 4 do
    local group, weight = rooms[i], rooms[i + 2]
    local total = tonumber(redis.call('HGET', prefix .. 'go:' .. group, 't:' .. node) or 0)
    local room = rooms[i + 1] - math.max(0, total - rooms[i + 3])   -- less the leases that the node had not received
    if room <= 0 then
      redis.call('ZREM', prefix .. 'gr:' .. group, node)
      redis.call('HDEL', prefix .. 'go:' .. group, node, 'w:' .. node)
    else
      redis.call('HSET', prefix .. 'go:' .. group, node, room, 'w:' .. node, weight)
      redis.call('SADD', prefix .. 'gn:' .. node, group)
      if not redis.call('ZSCORE', prefix .. 'gr:' .. group, node) then
        redis.call('ZADD', prefix .. 'gr:' .. group, redis.call('HGET', prefix .. 'g:' .. group, 'v') or 0, node)
      end
      waiting[group] = true
    end
  end
  for group in pairs(waiting) do
    dispatch(prefix, group, told)
  end
end

-- A session or a node becomes a member of a group.
local function join_group(prefix, group, member, node)
  redis.call('SADD', prefix .. 'gs:' .. group, member)
  redis.call('HSETNX', prefix .. 'g:' .. group, 'n', redis.call('HGET', prefix .. 'shared', 'n') or 0)
  if node then
    redis.call('SADD', prefix .. 'gn:' .. node, group)
  end
end

-- A member leaves; the group ends with the last one. A later group with its name has higher places: acknowledgements of
-- messages that its members have got may still arrive. The rooms of other nodes stay: a node announces its room just
-- before it joins.
local function leave_group(prefix, group, member, node)
  redis.call('SREM', prefix .. 'gs:' .. group, member)
  if node then
    redis.call('SREM', prefix .. 'gn:' .. node, group)
    redis.call('ZREM', prefix .. 'gr:' .. group, node)
    redis.call('HDEL', prefix .. 'go:' .. group, node, 'w:' .. node, 't:' .. node)
  end
  if redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 then
    local last = tonumber(redis.call('HGET', prefix .. 'g:' .. group, 'n') or 0)
    if last > tonumber(redis.call('HGET', prefix .. 'shared', 'n') or 0) then
      redis.call('HSET', prefix .. 'shared', 'n', string.format('%.0f', last))
    end
    redis.call('DEL', prefix .. 'g:' .. group, prefix .. 'gm:' .. group, prefix .. 'gq:' .. group,
      prefix .. 'gw:' .. group, prefix .. 'gv:' .. group, prefix .. 'gk:' .. group)
  end
end

-- A group keeps only the newest message of each topic from now on: take those that wait out of its list.
local function spread_list(prefix, group)
  local key, list = prefix .. 'g:' .. group, prefix .. 'gw:' .. group
  local place = tonumber(redis.call('HGET', key, 'n') or 0) - redis.call('LLEN', list)
  while true do
    local message = redis.call('LPOP', list)
    if not message then
      return
    end
    place = place + 1
    redis.call('HINCRBY', key, 'b', -#message)
    put_back(prefix, group, place, message)
  end
end

-- Declare a group with these settings, a JSON object; '' = no more. Returns the number of dropped messages.
local function declare(prefix, group, settings)
  local key = prefix .. 'g:' .. group
  local strategy = redis.call('HGET', key, 'o:strategy')
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if field:sub(1, 2) == 'o:' then
      redis.call('HDEL', key, field)
    end
  end
  if settings == '' then
    local back, listed = waiting_in(prefix, group)
    redis.call('HDEL', prefix .. 'groups', group)
    redis.call('DEL', prefix .. 'gv:' .. group, prefix .. 'gk:' .. group)
    leave_group(prefix, group, DECLARED)
    return redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 and back + listed or 0
  end
  redis.call('HSET', prefix .. 'groups', group, settings)
  join_group(prefix, group, DECLARED)
  for name, value in pairs(cjson.decode(settings)) do
    if type(value) == 'boolean' then
      value = value and '1' or '0'
    elseif type(value) == 'number' then
      value = string.format('%.14g', value)
    end
    redis.call('HSET', key, 'o:' .. name, value)
  end
  if redis.call('HGET', key, 'o:strategy') ~= strategy then
    redis.call('DEL', prefix .. 'gk:' .. group)
  end
  if redis.call('HGET', key, 'o:last_value') ~= '1' then
    redis.call('DEL', prefix .. 'gv:' .. group)
  else
    spread_list(prefix, group)
  end
  return 0
end

leave_groups = function(prefix, cid)
  for _, name in ipairs(redis.call('HKEYS', prefix .. 'subs:' .. cid)) do
    if is_group(name) then
      leave_group(prefix, name, 'c:' .. cid)
    end
  end
end

-- No key is bound to a node any more.
local function unbind_all(prefix, node, group)
  for _, key in ipairs(redis.call('HKEYS', prefix .. 'gk:' .. group)) do
    local bound = binding_of(prefix, group, key)
    if bound.node == node then
      unbind(prefix, group, key, bound)
    end
  end
end

-- A node has ended: what it had goes to others.
local function end_node_leases(prefix, node)
  local told = {}
  for _, group in ipairs(redis.call('SUNION', prefix .. 'gn:' .. node, prefix .. 'gl:' .. node)) do
    unbind_all(prefix, node, group)
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gn:' .. node)) do
    leave_group(prefix, group, 'n:' .. node, node)
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. node)) do
    for _, place in ipairs(redis.call('HKEYS', leases_of(prefix, node, group))) do
      return_lease(prefix, node, group, tonumber(place))
    end
    dispatch(prefix, group, told)
  end
  redis.call('DEL', prefix .. 'gn:' .. node)
  tell_leases(prefix, '', told)
end

-- Give the messages in a session's queue back to their groups: those that were not sent, and with `sent` also those of
-- QoS 1 that were. Returns whether others of groups stay.
give_back = function(prefix, cid, sent)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'n', 'g', 'o', 'w')
  if (state[2] or '') == '' then
    return false
  end
  local unsent = tonumber(state[1])
  if state[3] ~= '' or state[4] ~= '' then
    unsent = math.huge                           -- its connection, or one that still ends, may have got everything
  end
  local told, groups, done, stay = {}, {}, {}, false
  each_of_groups(prefix, cid, function(number, group, place, message)
    if redis.call('HGET', prefix .. 'st:' .. cid, number) then
      return                                     -- its client has it
    elseif number >= unsent or (sent and body_of(message):byte(1) % 4 == 1) then
      done[#done + 1] = number
      put_back(prefix, group, place, number >= unsent and message or failed(message, 0))
      groups[group] = true
    else
      stay = true
    end
  end)
  if #done > 0 then
    finish_entries(prefix, cid, done)
    for group in pairs(groups) do
      dispatch(prefix, group, told)
    end
    tell_leases(prefix, '', told)
  end
  redis.call('HSET', prefix .. 's:' .. cid, 'g', stay and 1 or '')
  return stay
end

-- A session with messages of groups has no connection any more: what was not sent goes back, the rest after a while.
local function begin_grace(prefix, cid)
  if give_back(prefix, cid, false) then
    local time = clock(prefix) + tonumber(redis.call('HGET', prefix .. 'shared', 'redispatch') or REDISPATCH)
    redis.call('ZADD', prefix .. 'grace', string.format('%.0f', time), cid)
  end
end

-- args: prefix, node, group, settings as JSON; '' = it is declared no more. Returns {number of the change, or 0 if nothing
-- changes, dropped messages}, or {'gone'}: the node is dead.
register('flockmq_declare_group', function(args)
  local prefix, node, group, settings = args[1], args[2], args[3], args[4]
  if not live(prefix, node) then
    return {'gone'}
  end
  if (redis.call('HGET', prefix .. 'groups', group) or '') == settings then
    return {0, 0}
  end
  local dropped = declare(prefix, group, settings)
  return {change(prefix, node, cmsgpack.pack({{'group', group, settings}})), dropped}
end)

-- args: prefix, cursor, count. A piece of the declared groups: {next cursor, {group, settings, ...}}.
register({function_name = 'flockmq_declared_groups', flags = {'no-writes', 'allow-oom'}, callback = function(args)
  return redis.call('HSCAN', args[1] .. 'groups', args[2], 'COUNT', args[3])
end})

-- args: prefix, group. Drops the messages that wait in a group; those that are leased stay. Returns how many.
register('flockmq_purge_group', function(args)
  local prefix, group = args[1], args[2]
  local back, listed = waiting_in(prefix, group)
  if back + listed > 0 then
    redis.call('UNLINK', prefix .. 'gq:' .. group, prefix .. 'gm:' .. group, prefix .. 'gw:' .. group,
      prefix .. 'gv:' .. group)
    redis.call('HSET', prefix .. 'g:' .. group, 'b', 0)
  end
  return back + listed
end)

-- args: prefix, groups. Returns the messages that wait in each, and their bytes, in turn.
register({function_name = 'flockmq_waiting', flags = {'no-writes', 'allow-oom'}, callback = function(args)
  local prefix, result = args[1], {}
  for i = 2, #args do
    local back, listed = waiting_in(prefix, args[i])
    result[#result + 1] = back + listed
    result[#result + 1] = tonumber(redis.call('HGET', prefix .. 'g:' .. args[i], 'b') or 0)
  end
  return result
end})

-- args: prefix, node. The leases of a node as Redis has them; a node reads them when its link is back.
-- Returns {group, place, message, ...}.
register({function_name = 'flockmq_leased', flags = {'no-writes', 'allow-oom'}, callback = function(args)
  local prefix, result = args[1], {}
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. args[2])) do
    local leases = redis.call('HGETALL', leases_of(prefix, args[2], group))
    for i = 1, #leases, 2 do
      result[#result + 1] = group
      result[#result + 1] = tonumber(leases[i])
      result[#result + 1] = leases[i + 1]
    end
    result[#result + 1] = group
    result[#result + 1] = 0
    result[#result + 1] = tonumber(redis.call('HGET', prefix .. 'go:' .. group, 't:' .. args[2]) or 0)
  end
  return result
end})
