-- The rotation of a group: the nodes and subscribers with room for its messages, in order of their virtual time. A call
-- reads those that it may need once, gives them messages (`assign`), and writes what has changed (`end_rotation`).

local append, in_parts = library.append, library.in_parts
local attempt, CLIENT = damage.attempt, damage.CLIENT
local live = nodes.live
local has_key, key_of, assignments_of = backlog.has_key, backlog.key_of, backlog.assignments_of
local part_of_group, put_back, FIRST_HEAD = backlog.part_of_group, backlog.put_back, backlog.FIRST_HEAD
local KEY_HEAD = backlog.KEY_HEAD
local add_entries, fill_queue = subscribers.add_entries, subscribers.fill_queue
local is_subscriber = subscribers.is_subscriber
local rest, taker_of, ITEM_HEAD = subscribers.rest, subscribers.taker_of, subscribers.ITEM_HEAD

local QUEUED = 100000         -- messages assigned to one node beyond its room, unless the group is declared otherwise

local function add_taker(rotation, taker, time)
  taker.time = time
  rotation.takers[#rotation.takers + 1] = taker
  rotation.heap[#rotation.heap + 1] = taker      -- sorted, so it is a heap
  rotation.room = rotation.room + taker.room
end

-- Read the rotation. `strategy`, `most`: settings of the group. `count`: the number of messages to give: no more takers
-- can get one, unless one of these takes no packets of any size (`limited`). If there are fewer takers, a turn is
-- several messages (`run`).
local function rotation_of(prefix, group, strategy, most, count, limited)
  local keyed = (strategy or 'rotation') ~= 'rotation'
  local rotation = {group = group, takers = {}, heap = {}, room = 0, left = 0, keyed = keyed, most = most,
    limited = limited}
  local found = redis.call('ZRANGE', prefix .. 'gr:' .. group, 0, (keyed or limited) and -1 or count - 1, 'WITHSCORES')
  local fields, gone, full, nodes, at = {}, {}, {}, {}, 0
  for i = 1, #found, 2 do
    fields[#fields + 1] = found[i]
    if not is_subscriber(found[i]) then
      fields[#fields + 1] = 'w:' .. found[i]
      fields[#fields + 1] = 't:' .. found[i]
      fields[#fields + 1] = 's:' .. found[i]
    end
  end
  local values = in_parts('HMGET', prefix .. 'go:' .. group, fields)
  for i = 1, #found, 2 do
    local name, time = found[i], tonumber(found[i + 1])
    if not is_subscriber(name) then
      local largest = tonumber(values[at + 4] or 0)
      add_taker(rotation, {name = name, room = tonumber(values[at + 1] or 1), step = 1 / tonumber(values[at + 2] or 1),
        total = tonumber(values[at + 3] or 0), largest = largest > 0 and largest or math.huge, assignments = {}}, time)
      rotation.limited = rotation.limited or largest > 0
      at = at + 4
    else
      at = at + 1
      local taker = not keyed and values[at] and taker_of(prefix, group, name, values[at], nodes)
      if taker and taker.room > 0 then
        add_taker(rotation, taker, time)
      elseif taker then                          -- its node has put a message that it had assigned into the queue
        full[#full + 1] = name
        if taker.rests then
          attempt(prefix, CLIENT, taker.cid, rest, prefix, group, taker.cid)
        end
      elseif not keyed then
        gone[#gone + 1] = name
      end
    end
  end
  rotation.run = math.max(1, math.floor(count / math.max(1, #rotation.heap)))
  if rotation.limited and not keyed and not limited then
    return rotation_of(prefix, group, strategy, most, count, true)
  end
  if gone[1] or full[1] then
    in_parts('ZREM', prefix .. 'gr:' .. group, gone)
    in_parts('HDEL', prefix .. 'go:' .. group, gone)
    in_parts('ZREM', prefix .. 'gr:' .. group, full)
    return rotation_of(prefix, group, strategy, most, count, limited)     -- others may have a turn
  end
  return rotation
end

-- The first of the heap has another time now, or no room: restore the order.
local function sift(heap)
  local first, count = heap[1], #heap
  if first.room <= 0 then
    first, heap[count] = heap[count], nil
    count = count - 1
  end
  if count == 0 then
    return
  end
  local i = 1
  while 2 * i <= count do
    local child = 2 * i
    if child < count and heap[child + 1].time < heap[child].time then
      child = child + 1
    end
    if heap[child].time >= first.time then
      break
    end
    heap[i] = heap[child]
    i = child
  end
  heap[i] = first
end

-- The node or subscriber with room whose turn it is, or nil. `rotation.left`: messages that it gets before the next
-- one.
local function next_taker(rotation)
  local heap, now = rotation.heap, rotation.current
  if now and rotation.left > 0 and now.room > 0 then
    return now
  end
  while heap[1] and heap[1].room <= 0 do
    sift(heap)
  end
  now = heap[1]
  if now then
    rotation.current, rotation.left = now, math.min(rotation.run, now.room)
    rotation.now, now.time = now.time, now.time + now.step * rotation.left
    sift(heap)
  end
  return now
end

-- For a group with an order, or with nodes whose subscribers take no packets of any size: the node or subscriber with
-- room whose turn it is, of those that take the message. If none does, one that does not gets it, and gives it back
-- after a while. Turns go to nodes that have keys, too, or to a later one: there is no heap.
local function next_node(rotation, message)
  local first, fits, size = nil, false, rotation.limited and backlog.packet_size(message)
  for _, node in ipairs(rotation.takers) do
    local takes = not size or not node.largest or size <= node.largest
    if node.room > 0 and (first == nil or (takes and not fits) or (takes == fits and node.time < first.time)) then
      first, fits = node, takes
    end
  end
  return first
end

-- A node as part of the rotation, with room or without; nil if it has ended.
local function node_of(prefix, rotation, name)
  for _, taker in ipairs(rotation.takers) do
    if taker.name == name then
      return taker
    end
  end
  if name == '' or not live(prefix, name) then
    return nil
  end
  local total = redis.call('HGET', prefix .. 'go:' .. rotation.group, 't:' .. name)
  local node = {name = name, room = 0, total = tonumber(total or 0), assignments = {}}
  rotation.takers[#rotation.takers + 1] = node
  return node
end

-- Order by key. While messages of a key are with a node, or it has given some to a session that has not finished them,
-- the key is bound to that node: all that follow are assigned to it, whether it has room or not, and it keeps their
-- order. The binding is a field of `gk:<group>`: numbers of its first and its last assignment, 1 = the node gives the
-- key up, node or nothing, client id of the persistent session that has got the last message, if any; FOREIGN stands
-- before it if another shard has the session.
local FOREIGN = '\255'        -- no client id has this byte

local function binding_of(prefix, group, key)
  local first, number, closing, node, cid = (redis.call('HGET', prefix .. 'gk:' .. group, key) or ''):match(
    '^(%d+) (%d+) ([01]) (%S*) (.*)$')
  return number and {first = first, number = number, closing = closing == '1', node = node, cid = cid}
end

local function bind(prefix, group, key, bound)
  redis.call('HSET', prefix .. 'gk:' .. group, key, string.format('%s %s %d %s %s', bound.first, bound.number,
    bound.closing and 1 or 0, bound.node, bound.cid))
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

-- Whether a node has as many assignments as messages of the group may wait.
local function is_loaded(prefix, rotation, node)
  node.count = node.count or redis.call('HLEN', assignments_of(prefix, node.name, rotation.group))
  return node.count + #node.assignments / 2 >= rotation.most
end

-- The node that gets a message with a key, and the message with the head of its assignment; or nil.
local function node_of_key(prefix, rotation, key, message)
  local bound, elsewhere = binding_of(prefix, rotation.group, key), 0
  local node = bound and node_of(prefix, rotation, bound.node)
  if node and (bound.closing or is_loaded(prefix, rotation, node)) then
    return nil
  end
  if bound and not node and redis.call('SISMEMBER', prefix .. 'in_doubt', bound.node) == 1 then
    return nil                                   -- it has earlier messages of the key, perhaps
  end
  if not node then
    node = next_node(rotation, message)
    if not node then
      return nil
    end
    rotation.known = rotation.known or {}
    local cid = bound and bound.cid or ''
    if cid ~= '' and (cid:sub(1, 1) == FOREIGN or has_key(prefix, cid, rotation.group, key, rotation.known)) then
      elsewhere = 1
    else
      cid = ''
    end
    bound = {node = node.name, closing = false, cid = cid}
  end
  rotation.number = (rotation.number or tonumber(redis.call('HGET', prefix .. 'g:' .. rotation.group, 'l') or 0)) + 1
  bound.number = string.format('%.0f', rotation.number)
  bound.first = bound.first or bound.number
  bind(prefix, rotation.group, key, bound)
  return node, string.char(80 + elsewhere) .. key .. struct.pack('<d', rotation.number) .. message:sub(KEY_HEAD + 1)
end

-- Assign a message to a node.
local function add_assignment(rotation, node, place, message, outbox)
  node.assignments[#node.assignments + 1] = place
  node.assignments[#node.assignments + 1] = message
  append((rotation.keyed and outbox.keyed or outbox).assignments, node.name, rotation.group, place, message)
end

-- Assign a message of a group with an order to the node of its key. Returns whether there is one.
local function assign_keyed(prefix, rotation, place, message, outbox)
  local node, key = nil, key_of(message)
  if key then
    node, message = node_of_key(prefix, rotation, key, message)
  else
    node = next_node(rotation, message)          -- it came before the group had an order
  end
  if not node then
    return false
  end
  rotation.used, node.used = true, true
  if node.room > 0 then
    rotation.now = node.time
    node.time, node.room, rotation.room = node.time + node.step, node.room - 1, rotation.room - 1
  end
  add_assignment(rotation, node, place, message, outbox)
  return true
end

-- Give one message to a node or subscriber with room. One with heads goes to the node of the subscriber: it may have
-- failed so often that it is a dead letter now.
local function assign_to(prefix, rotation, taker, place, message, outbox)
  rotation.used, taker.used, rotation.left = true, true, rotation.left - 1
  if taker.cid and message:byte(1) >= FIRST_HEAD then
    taker = node_of(prefix, rotation, taker.node)
  end
  if taker.room > 0 then
    taker.room, rotation.room = taker.room - 1, rotation.room - 1
  end
  if taker.cid then
    add_entries(taker, place, {message}, 1, 1)
  else
    add_assignment(rotation, taker, place, message, outbox)
  end
end

-- Give a message to the node or subscriber with room whose turn it is, or to the node of its key. `outbox`: what nodes
-- have to be sent. Returns whether there is one.
local function assign(prefix, rotation, place, message, outbox)
  if rotation.keyed then
    return assign_keyed(prefix, rotation, place, message, outbox)
  end
  local taker
  if rotation.limited then
    taker = next_node(rotation, message)
    if taker then
      rotation.now, taker.time = taker.time, taker.time + taker.step
    end
  else
    taker = next_taker(rotation)
  end
  if taker then
    assign_to(prefix, rotation, taker, place, message, outbox)
  end
  return taker ~= nil
end

-- Give messages, of which the first one has this place, one after the other. Returns the number of those that are
-- given.
local function assign_all(prefix, rotation, place, messages, outbox)
  local i = 1
  while i <= #messages do
    local taker = not rotation.keyed and not rotation.limited and next_taker(rotation)
    if taker and taker.cid and messages[i]:byte(1) < FIRST_HEAD then
      local count = math.min(rotation.left, taker.room, #messages - i + 1)
      count = add_entries(taker, place + i - 1, messages, i, i + count - 1) - i
      rotation.used, taker.used, rotation.left = true, true, rotation.left - count
      taker.room, rotation.room = taker.room - count, rotation.room - count
      i = i + count
    elseif assign(prefix, rotation, place + i - 1, messages[i], outbox) then
      i = i + 1
    else
      break
    end
  end
  return i - 1
end

-- Write the assignments of a node; `fields` of `go` follow.
local function end_leasing(prefix, rotation, node, outbox, fields)
  local group, total = rotation.group, node.total + #node.assignments / 2
  append((rotation.keyed and outbox.keyed or outbox).totals, node.name, group, total)
  in_parts('HSET', assignments_of(prefix, node.name, group), node.assignments, 2)
  redis.call('SADD', prefix .. 'gl:' .. node.name, group)
  fields[#fields + 1] = 't:' .. node.name
  fields[#fields + 1] = total
  if node.time then
    fields[#fields + 1] = node.name
    fields[#fields + 1] = node.room
  end
end

-- Write the entries of a subscriber. If its queue is damaged, its messages wait again.
local function end_filling(prefix, rotation, subscriber, outbox)
  local group = rotation.group
  if subscriber.item[ITEM_HEAD + 1]
      and not attempt(prefix, CLIENT, subscriber.cid, fill_queue, prefix, group, subscriber, outbox) then
    for i = ITEM_HEAD + 1, #subscriber.item do
      local _, place, message = part_of_group(subscriber.item[i])
      put_back(prefix, group, place, message)
    end
    subscriber.room = 0
  end
end

-- Write what the turns have changed, but for the time of the last one (`now`).
local function end_rotation(prefix, rotation, outbox)
  local group, fields, turns, full, last = rotation.group, {}, {}, {}, rotation.current
  if not rotation.used then
    return
  end
  if last then
    last.time = last.time - last.step * rotation.left    -- its turn was longer than what was left to give
  end
  for _, taker in ipairs(rotation.takers) do
    if taker.cid and taker.used then
      end_filling(prefix, rotation, taker, outbox)
    elseif taker.assignments and taker.assignments[1] then
      end_leasing(prefix, rotation, taker, outbox, fields)
    end
    if taker.time and taker.room <= 0 then
      full[#full + 1] = taker.name
      if taker.rests then
        attempt(prefix, CLIENT, taker.cid, rest, prefix, group, taker.cid)
      end
    elseif taker.time and taker.used then
      turns[#turns + 1] = taker.time
      turns[#turns + 1] = taker.name
    end
  end
  in_parts('HSET', prefix .. 'go:' .. group, fields, 2)
  in_parts('ZADD', prefix .. 'gr:' .. group, turns, 2)
  in_parts('ZREM', prefix .. 'gr:' .. group, full)
  if rotation.number then
    redis.call('HSET', prefix .. 'g:' .. group, 'l', string.format('%.0f', rotation.number))
  end
end

return {
  FOREIGN = FOREIGN, QUEUED = QUEUED, assign = assign, assign_all = assign_all, assign_keyed = assign_keyed,
  bind = bind, binding_of = binding_of, end_rotation = end_rotation, rotation_of = rotation_of, unbind = unbind,
}
