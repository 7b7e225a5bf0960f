-- Assignments: messages of shared subscriptions go from where they wait to nodes and subscribers with room, and come
-- back.

local in_parts, AT_ONCE = library.in_parts, library.AT_ONCE
local attempt, GROUP = damage.attempt, damage.GROUP
local add_waiting = tenants.add_waiting
local key_of, assignments_of = backlog.key_of, backlog.assignments_of
local put_back, topic_of = backlog.put_back, backlog.topic_of
local end_rotation, assign, assign_all = rotation.end_rotation, rotation.assign, rotation.assign_all
local assign_keyed, rotation_of, QUEUED = rotation.assign_keyed, rotation.rotation_of, rotation.QUEUED

-- Assign messages that have come back. Returns their bytes.
local function dispatch_back(prefix, group, rotation, outbox)
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
      assign(prefix, rotation, tonumber(places[i]), message, outbox)
    end
  end
  return bytes
end

-- Assign messages of the list, whose first one has this place. Returns their bytes.
local function dispatch_listed(prefix, group, rotation, first, outbox)
  local entries = redis.call('LPOP', prefix .. 'gw:' .. group, math.min(rotation.room, AT_ONCE))
  local bytes, empty, messages = 0, 0, {}
  for i = 1, #entries + 1 do
    if entries[i] and entries[i] ~= '' then
      messages[#messages + 1] = entries[i]
      bytes = bytes + #entries[i]
    else
      assign_all(prefix, rotation, first + i - 1 - #messages, messages, outbox)
      messages, empty = {}, empty + (entries[i] and 1 or 0)
    end
  end
  backlog.lose_empty(prefix, group, empty)
  return bytes
end

-- Assign what waits in a group with an order, one after the other until one must wait. `last`: place of the last of the
-- list. Returns the bytes.
local function dispatch_keyed(prefix, group, rotation, last, outbox)
  local bytes = 0
  while true do
    local back = redis.call('ZRANGE', prefix .. 'gq:' .. group, 0, 0)[1]
    local message = back and redis.call('HGET', prefix .. 'gm:' .. group, back)
      or not back and redis.call('LINDEX', prefix .. 'gw:' .. group, 0)
    local place = tonumber(back or last - redis.call('LLEN', prefix .. 'gw:' .. group) + 1)
    local is_empty = message == ''
    if not message or not (is_empty or assign(prefix, rotation, place, message, outbox)) then
      return bytes
    end
    bytes = bytes + #message
    backlog.lose_empty(prefix, group, is_empty and 1 or 0)
    if back then
      redis.call('ZREM', prefix .. 'gq:' .. group, back)
      redis.call('HDEL', prefix .. 'gm:' .. group, back)
      redis.call('HDEL', prefix .. 'gv:' .. group, topic_of(message))
    else
      redis.call('LPOP', prefix .. 'gw:' .. group)
    end
  end
end

-- Assign what waits to nodes with room.
local function dispatch(prefix, group, outbox)
  local back, listed = backlog.counts(prefix, group)
  if back + listed == 0 then
    return
  end
  local state = redis.call('HMGET', prefix .. 'g:' .. group, 'n', 'o:strategy', 'o:max_queued_messages')
  local last = tonumber(state[1] or 0)
  local rotation, bytes = rotation_of(prefix, group, state[2], tonumber(state[3] or QUEUED), back + listed), 0
  if rotation.keyed then
    bytes = dispatch_keyed(prefix, group, rotation, last, outbox)
  else
    while back > 0 and rotation.room > 0 do
      bytes = bytes + dispatch_back(prefix, group, rotation, outbox)
      back = redis.call('ZCARD', prefix .. 'gq:' .. group)
    end
    while listed > 0 and rotation.room > 0 do
      bytes = bytes + dispatch_listed(prefix, group, rotation, last - listed + 1, outbox)
      listed = redis.call('LLEN', prefix .. 'gw:' .. group)
    end
  end
  if bytes > 0 then
    add_waiting(prefix, group, -bytes)
    if rotation.now then
      redis.call('HSET', prefix .. 'g:' .. group, 'v', rotation.now)
    end
    end_rotation(prefix, rotation, outbox)
  end
end

-- Assign what waits in these groups.
local function dispatch_all(prefix, groups, outbox)
  for group in pairs(groups) do
    attempt(prefix, GROUP, group, dispatch, prefix, group, outbox)
  end
end

-- Assignments end. Those that are not the node's are left alone.
local function end_assignments(prefix, node, group, places)
  local assignments = assignments_of(prefix, node, group)
  in_parts('HDEL', assignments, places)
  if redis.call('EXISTS', assignments) == 0 then
    redis.call('SREM', prefix .. 'gl:' .. node, group)
  end
end

-- A message comes back that no node has, although the node of its key may have later ones: it is assigned to that node
-- at once, whatever waits before it. Other messages wait. `rotations`: group -> its rotation without nodes, for
-- `end_taking_back`.
function backlog.take_back(prefix, group, place, message, rotations, outbox)
  local rotation = rotations[group] or {group = group, takers = {}, room = 0, most = math.huge, keyed = true}
  rotations[group] = rotation
  if not (key_of(message) and assign_keyed(prefix, rotation, place, message, outbox)) then
    put_back(prefix, group, place, message)
  end
end

-- All messages of a call have come back. The groups are to be dispatched.
function backlog.end_taking_back(prefix, rotations, outbox)
  for group, rotation in pairs(rotations) do
    attempt(prefix, GROUP, group, end_rotation, prefix, rotation, outbox)
  end
end

-- An assignment ends, and the message waits again; or with `rotations` and `outbox` as for `take_back`, the node of its
-- key has it again.
local function return_assignment(prefix, node, group, place, rotations, outbox)
  local message = redis.call('HGET', assignments_of(prefix, node, group), place)
  if message then
    end_assignments(prefix, node, group, {place})
    if rotations then
      backlog.take_back(prefix, group, place, message, rotations, outbox)
    else
      put_back(prefix, group, place, message)
    end
  end
end

return {
  dispatch = dispatch, dispatch_all = dispatch_all, end_assignments = end_assignments,
  return_assignment = return_assignment,
}
