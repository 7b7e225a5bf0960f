-- The outbox of a call for nodes, and the room of persistent subscribers of groups. Their node
-- announces the room of each, and a message goes into the queue of such a session in the step in which it gets its
-- place.

local append, call, publish, notify = library.append, library.call, library.publish, library.notify
local LARGE, NOTHING = library.LARGE, library.NOTHING
local live = nodes.live
local note_tail, noted_tails = redis_restarts.note_tail, redis_restarts.noted_tails
local FLAGS, append_entries = packed_sessions.FLAGS, packed_sessions.append_entries
local length_of = packed_sessions.length_of
local rare, session_of = packed_sessions.rare, packed_sessions.of
local set_flag, set_rare = packed_sessions.set_flag, packed_sessions.set_rare
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

-- The rare field of a session with the number of messages of a group that were put into its queue in this way.
local function counter_of(group)
  return 'k' .. group
end

-- The subscribers' limits. The limit of a session without other subscriptions is announced once for each connection,
-- and is one `by_length`: the session has room while its queue has fewer messages that are not done. Others have a
-- limit of the number above, which their node has to announce again and again.
local function room_of(session, limit, by_length, total)
  if by_length == 1 then
    return limit - length_of(session) + queues.done(session)
  end
  return limit - total
end

-- A subscriber with a limit by length has no room, and has left the rotation: it is to return when its queue is
-- shorter. The rare field `r` of its session has the groups, each with a zero byte behind it.
local function rest(prefix, group, cid)
  local session = session_of(prefix, cid)
  local resting = session and rare(session, 'r') or ''
  if session and not ('\0' .. resting):find('\0' .. group .. '\0', 1, true) then
    set_rare(session, 'r', resting .. group .. '\0')
  end
end

-- Let a subscriber take part in the rotation, behind the others.
local function enter(prefix, group, name)
  if not redis.call('ZSCORE', prefix .. 'gr:' .. group, name) then
    redis.call('ZADD', prefix .. 'gr:' .. group, redis.call('HGET', prefix .. 'g:' .. group, 'v') or 0, name)
  end
end

function queues.wake(session)
  local prefix, cid = session.prefix, session.cid
  local resting, left = rare(session, 'r') or '', ''
  for group in resting:gmatch('([^%z]+)%z') do
    local packed = redis.call('HGET', prefix .. 'go:' .. group, SUBSCRIBER .. cid)
    local _, _, limit, by_length = unpack(packed and cmsgpack.unpack(packed) or NOTHING)
    if by_length == 1 and room_of(session, limit, 1, 0) > 0 then
      enter(prefix, group, SUBSCRIBER .. cid)
      call.woken[group] = true
    elseif by_length == 1 then
      left = left .. group .. '\0'
    end
  end
  if left ~= resting then
    set_rare(session, 'r', left ~= '' and left or nil)
  end
end

-- A subscriber as part of a rotation; nil if the connection has ended for which its room was announced. `packed`: its
-- field in `go`, MessagePack: node, epoch of its connection, limit, 1 = by length, highest QoS, 1 = it gets RETAIN as
-- published, subscription identifiers as properties. `nodes`: for this call, node -> whether it lives.
local function taker_of(prefix, group, name, packed, nodes)
  local node, epoch, limit, by_length, qos, as_published, identifiers = unpack(cmsgpack.unpack(packed))
  local cid = name:sub(#SUBSCRIBER + 1)
  if nodes[node] == nil then
    nodes[node] = live(prefix, node)
  end
  local fine, session, total, room = pcall(function()
    local found = session_of(prefix, cid)
    local so_far = found and tonumber(rare(found, counter_of(group)) or 0)
    return found, so_far, found and room_of(found, limit, by_length, so_far)
  end)
  if not fine or not session or session.owner ~= node or session.epoch ~= epoch or not nodes[node] then
    return nil
  end
  local kind, between = 49, struct.pack('<H', #group) .. group   -- an entry begins with kind and place: `part_of_group`
  if identifiers ~= '' then
    kind, between = kind + 4, between .. struct.pack('<H', #identifiers) .. identifiers
  end
  return {name = name, cid = cid, node = node, room = room, rests = by_length == 1, total = total, qos = qos,
    kind = string.char(kind), retained_kind = string.char(kind + 2 * as_published), between = between,
    session = session, bytes = 0, step = 1, item = {cid, 0, group, epoch, 0}}
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
  local session, item = taker.session, taker.item
  local count = #item - ITEM_HEAD
  local length = append_entries(session, item, ITEM_HEAD + 1, taker.bytes)
  item[2], item[5] = session.head + length - count, taker.total + count
  outbox.large[item] = taker.bytes >= LARGE * count
  set_flag(session, FLAGS.GROUPED, true)
  set_rare(session, counter_of(group), item[5])
  if noted_tails(prefix) then
    note_tail(prefix, prefix .. 's:' .. taker.cid, session.incarnation, item[2])
  end
  append(outbox.given, taker.node, item)
end

-- A node announces the limit of a subscriber. 0: it gets no messages, and the node is sent the number of those that
-- were put into its queue. `...`: the rest of the subscriber's field in `go`. Returns whether the subscriber has room.
local function announce_subscriber(prefix, node, outbox, group, cid, epoch, limit, by_length, ...)
  local name = SUBSCRIBER .. cid
  local session = session_of(prefix, cid)
  if not session or session.owner ~= node or session.epoch ~= epoch then
    return false                                 -- it is connected elsewhere by now
  end
  local counted = rare(session, counter_of(group))
  if not counted and redis.call('SISMEMBER', prefix .. 'gs:' .. group, name) == 0 then
    return false                                 -- it has left
  end
  local total = tonumber(counted or 0)
  if limit == 0 then
    append(outbox.given, node, {cid, 0, group, epoch, total})
  end
  local room = room_of(session, limit, by_length, total)
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
  local session = session_of(prefix, name:sub(#SUBSCRIBER + 1))
  if session then
    set_rare(session, counter_of(group))
  end
end

return {
  ITEM_HEAD = ITEM_HEAD, add_entries = add_entries, announce_subscriber = announce_subscriber, fill_queue = fill_queue,
  forget_subscriber = forget_subscriber, is_subscriber = is_subscriber, new_outbox = new_outbox, rest = rest,
  send_apart = send_apart, taker_of = taker_of, send_outbox = send_outbox,
}
