-- The outbox of a call for nodes, and the room of persistent subscribers of groups. Their node
-- announces the room of each, and a message goes into the queue of such a session in the step in which it gets its
-- place.

local append, call, publish, notify = library.append, library.call, library.publish, library.notify
local AT_ONCE, LARGE, NOTHING = library.AT_ONCE, library.LARGE, library.NOTHING
local live = nodes.live
local note_tail, noted_tails = redis_restarts.note_tail, redis_restarts.noted_tails
local write_bytes = tenants.write_bytes
local FIRST_HEAD = backlog.FIRST_HEAD

local ITEM_HEAD = 5           -- elements of an item of `given` before the entries

-- What nodes are to be sent. By node: `assignments`, {group, place, message, ...}; `totals`, {group, number of
-- assignments to the node so far, ...}; both also as `keyed` of groups with an order; `given`, items {client id, first
-- queue number, group, epoch, total, entries ...}: entries that are in queues of its sessions now, and the number of
-- all that the subscriber has got in this way.
local function new_outbox()
  return {assignments = {}, totals = {}, keyed = {assignments = {}, totals = {}}, given = {}, large = {}}
end

local function send_apart(prefix, node, list, first)
  for i = first, #list do
    if #list[i] >= LARGE then
      publish(prefix .. 'to:' .. node, list[i])
      list[i] = false
    end
  end
end

-- Send it. Returns what is for the caller, to be sent with its reply: assignments and totals, but none of groups with
-- an order; and the list of items. (The numbers of entries in the reply are lower than the numbers of the items.)
local function send_outbox(prefix, node, outbox)
  for other, assignments in pairs(outbox.keyed.assignments) do
    notify(prefix, other, 'assigned', assignments, outbox.keyed.totals[other])
  end
  for other, assignments in pairs(outbox.assignments) do
    if other ~= node then
      notify(prefix, other, 'assigned', assignments, outbox.totals[other])
    end
  end
  for other, items in pairs(outbox.given) do
    if other ~= node then
      for _, item in ipairs(items) do
        if outbox.large[item] then
          send_apart(prefix, other, item, ITEM_HEAD + 1)
        end
      end
      notify(prefix, other, 'given', items)
    end
  end
  return outbox.assignments[node] or NOTHING, outbox.totals[node] or NOTHING, outbox.given[node] or NOTHING
end

-- The name of a subscriber in `gr` and `go` of its group; nodes have no colon in theirs.
local SUBSCRIBER = 'c:'

local function is_subscriber(name)
  return name:sub(1, #SUBSCRIBER) == SUBSCRIBER
end

local CHARACTERS = {}         -- by number; Redis lets a library use `string` only in functions

-- The field of `s:<client id>` with the number of messages of a group that were put into its queue in this way.
local function counter_of(group)
  return 'k' .. group
end

-- The subscribers' limits. The limit of a session without other subscriptions is announced once for each connection,
-- and is one `by_length`: the session has room while its queue has fewer messages that are not done. Others have a
-- limit of the number above, which their node has to announce again and again. `acked`: field `a` of the session.
local function room_of(prefix, cid, limit, by_length, total, acked)
  if by_length == 1 then
    return limit - redis.call('LLEN', prefix .. 'q:' .. cid) + (tonumber(acked) or 0)
  end
  return limit - total
end

-- A subscriber with a limit by length has no room, and has left the rotation: it is to return when its queue is
-- shorter. The field `r` of its session has the groups, each with a zero byte behind it.
local function rest(prefix, group, cid)
  local key = prefix .. 's:' .. cid
  local resting = redis.call('HGET', key, 'r') or ''
  if not ('\0' .. resting):find('\0' .. group .. '\0', 1, true) then
    redis.call('HSET', key, 'r', resting .. group .. '\0')
  end
end

-- Let a subscriber take part in the rotation, behind the others.
local function enter(prefix, group, name)
  if not redis.call('ZSCORE', prefix .. 'gr:' .. group, name) then
    redis.call('ZADD', prefix .. 'gr:' .. group, redis.call('HGET', prefix .. 'g:' .. group, 'v') or 0, name)
  end
end

function queues.wake(prefix, cid, resting, acked)
  local left = ''
  for group in resting:gmatch('([^%z]+)%z') do
    local packed = redis.call('HGET', prefix .. 'go:' .. group, SUBSCRIBER .. cid)
    local _, _, limit, by_length = unpack(packed and cmsgpack.unpack(packed) or NOTHING)
    if by_length == 1 and room_of(prefix, cid, limit, 1, 0, acked) > 0 then
      enter(prefix, group, SUBSCRIBER .. cid)
      call.woken[group] = true
    elseif by_length == 1 then
      left = left .. group .. '\0'
    end
  end
  if left ~= resting then
    redis.call('HSET', prefix .. 's:' .. cid, 'r', left)
  end
end

-- A subscriber as part of a rotation; nil if the connection has ended for which its room was announced. `packed`: its
-- field in `go`, MessagePack: node, epoch of its connection, limit, 1 = by length, highest QoS, 1 = it gets RETAIN as
-- published, subscription identifiers as properties. `nodes`: for this call, node -> whether it lives.
local function taker_of(prefix, group, name, packed, nodes)
  local node, epoch, limit, by_length, qos, as_published, identifiers = unpack(cmsgpack.unpack(packed))
  local cid = name:sub(#SUBSCRIBER + 1)
  local key, tenant = prefix .. 's:' .. cid, tenants.of(cid)
  local state = redis.pcall('HMGET', key, 'o', 'e', 'h', 'b', 'x', counter_of(group), 'a')
  if nodes[node] == nil then
    nodes[node] = live(prefix, node)
  end
  local total = tonumber(state[6] or 0)
  local fine, room = pcall(room_of, prefix, cid, limit, by_length, total, state[7])
  if state.err or state[1] ~= node or tonumber(state[2]) ~= epoch or not nodes[node] or not fine then
    return nil
  end
  local head, bytes = tonumber(state[3]), tonumber(state[4])
  if not (head and bytes) then
    return nil
  end
  local kind, between = 49, struct.pack('<H', #group) .. group   -- an entry begins with kind and place: `part_of_group`
  if identifiers ~= '' then
    kind, between = kind + 4, between .. struct.pack('<H', #identifiers) .. identifiers
  end
  return {name = name, cid = cid, node = node, room = room, rests = by_length == 1, total = total, qos = qos,
    kind = string.char(kind), retained_kind = string.char(kind + 2 * as_published), between = between,
    head = head, tenant = tenant, before = bytes, bytes = bytes, incarnation = tonumber(state[5]), step = 1,
    item = {cid, 0, group, epoch, 0}}
end

-- Add the messages with these indices to those for a subscriber; the first one has this place. Stops at a message with
-- heads. Returns the index after the last one. (The longest loop of the library: it makes one text for each message.)
local function add_entries(taker, place, messages, from, to)
  local item, qos, between, bytes, byte = taker.item, taker.qos, nil, taker.bytes, string.byte
  if not CHARACTERS[0] then
    for i = 0, 255 do
      CHARACTERS[i] = string.char(i)
    end
  end
  for i = from, to do
    local message, kind, low = messages[i], taker.kind, place % 256
    local first = byte(message, 1)
    if first >= FIRST_HEAD then
      to = i - 1
      break
    end
    if first % 8 > qos then  -- its QoS is higher; or it has RETAIN, which means something else in a queue
      kind = first % 8 > 3 and taker.retained_kind or kind
      message = CHARACTERS[first - first % 8 + math.min(first % 4, qos)] .. message:sub(2)
    end
    if low == 0 or not between then
      between = struct.pack('<I4I4', place % 4294967296, math.floor(place / 4294967296)):sub(2) .. taker.between
    end
    message = kind .. CHARACTERS[low] .. between .. message
    bytes = bytes + #message
    item[#item + 1] = message
    place = place + 1
  end
  taker.bytes = bytes
  return to + 1
end

-- Append what was added for a subscriber to its queue.
local function fill_queue(prefix, group, taker, outbox)
  local key, item, length = prefix .. 's:' .. taker.cid, taker.item, 0
  for i = ITEM_HEAD + 1, #item, AT_ONCE do
    length = redis.call('RPUSH', prefix .. 'q:' .. taker.cid, unpack(item, i, math.min(i + AT_ONCE - 1, #item)))
  end
  local count = #item - ITEM_HEAD
  item[2], item[5] = taker.head + length - count, taker.total + count
  outbox.large[item] = taker.bytes - taker.before >= LARGE * count
  if length == count then
    taker.bytes = taker.bytes - taker.before     -- as in `push_one`
  end
  write_bytes(taker.tenant, key, taker.before, taker.bytes, 'g', '1', counter_of(group), item[5])
  if noted_tails(prefix) then
    note_tail(prefix, key, taker.incarnation, item[2])
  end
  append(outbox.given, taker.node, item)
end

-- A node announces the limit of a subscriber. 0: it gets no messages, and the node is sent the number of those that
-- were put into its queue. `...`: the rest of the subscriber's field in `go`. Returns whether the subscriber has room.
local function announce_subscriber(prefix, node, outbox, group, cid, epoch, limit, by_length, ...)
  local name = SUBSCRIBER .. cid
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e', counter_of(group), 'a')
  if state[1] ~= node or tonumber(state[2]) ~= epoch
      or (not state[3] and redis.call('SISMEMBER', prefix .. 'gs:' .. group, name) == 0) then
    return false                                 -- it is connected elsewhere by now, or has left
  end
  local total = tonumber(state[3] or 0)
  if limit == 0 then
    append(outbox.given, node, {cid, 0, group, epoch, total})
  end
  local room = room_of(prefix, cid, limit, by_length, total, state[4])
  if room > 0 or by_length == 1 then
    redis.call('HSET', prefix .. 'go:' .. group, name, cmsgpack.pack({node, epoch, limit, by_length, ...}))
  else
    redis.call('HDEL', prefix .. 'go:' .. group, name)
  end
  if room > 0 then
    enter(prefix, group, name)
    return true
  end
  redis.call('ZREM', prefix .. 'gr:' .. group, name)
  if by_length == 1 then
    rest(prefix, group, cid)
  end
  return false
end

-- A session has left the group.
local function forget_subscriber(prefix, group, name)
  redis.call('ZREM', prefix .. 'gr:' .. group, name)
  redis.call('HDEL', prefix .. 'go:' .. group, name)
  redis.call('HDEL', prefix .. 's:' .. name:sub(#SUBSCRIBER + 1), counter_of(group))
end

return {
  ITEM_HEAD = ITEM_HEAD, add_entries = add_entries, announce_subscriber = announce_subscriber, fill_queue = fill_queue,
  forget_subscriber = forget_subscriber, is_subscriber = is_subscriber, new_outbox = new_outbox, rest = rest,
  send_apart = send_apart, taker_of = taker_of, send_outbox = send_outbox,
}
