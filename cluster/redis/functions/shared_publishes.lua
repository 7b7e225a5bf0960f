-- New messages of shared subscriptions: they go to nodes and subscribers with room, or wait.

local in_parts = library.in_parts
local attempt, GROUP = damage.attempt, damage.GROUP
local clock = clock.clock
local note_tail, noted_tails = redis_restarts.note_tail, redis_restarts.noted_tails
local write_bytes = tenants.write_bytes
local keep, supersede, topic_of = backlog.keep, backlog.supersede, backlog.topic_of
local end_rotation, assign_all, rotation_of = rotation.end_rotation, rotation.assign_all, rotation.rotation_of

-- What a call needs of a group to accept this number of messages; `group_limits`, `limits`: see `share`.
local function state_of(prefix, group, group_limits, count, limits)
  local key, tenant = prefix .. 'g:' .. group, tenants.of_group(group)
  local found = redis.call('HMGET', key, 'n', 'b', 'o:max_queued_messages', 'o:max_queued_bytes',
    'o:when_full', 'o:last_value', 'o:strategy', 'v')
  if not found[1] then
    return false                                 -- there is no such group
  end
  local waiting = 0
  local most, place, bytes = tonumber(found[3] or group_limits[1]), tonumber(found[1]), tonumber(found[2] or 0)
  if bytes > 0 then
    waiting = backlog.size(prefix, group)
  end
  if noted_tails(prefix) then
    note_tail(prefix, key, 0, place)
  end
  return {
    group = group,
    tenant = tenant,
    place = place,
    time = found[8] or 0,
    waiting = waiting,
    before = bytes,
    bytes = bytes,
    quota = bytes + tenants.free(prefix, limits, tenant),
    most = most,
    most_bytes = tonumber(found[4] or group_limits[2]),
    drop_old = (found[5] or (group_limits[3] == 1 and 'drop-old')) == 'drop-old',
    last_value = found[6] == '1',
    rotation = waiting == 0 and rotation_of(prefix, group, found[7], most, count),
    added = {},
    expired = 0,
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
    return #backlog.pop(prefix, group)
  end
  local message = redis.call('HGET', prefix .. 'gm:' .. group, place)
  redis.call('HDEL', prefix .. 'gm:' .. group, place)
  if state.last_value then
    redis.call('HDEL', prefix .. 'gv:' .. group, topic_of(message))
  end
  return #message
end

-- A message that waits at this place has expired.
local function forget_expired(prefix, state, message)
  if state.last_value then
    redis.call('HDEL', prefix .. 'gv:' .. state.group, topic_of(message))
  end
  state.waiting, state.bytes, state.expired = state.waiting - 1, state.bytes - #message, state.expired + 1
end

-- Drop those that have expired of messages that have come back, behind the place `from`. Returns the place of the last
-- one that was looked at, their number, and the earliest deadline of the others or `seen`.
local function drop_expired_back(prefix, state, from, seen, time)
  local queue, messages, looked = prefix .. 'gq:' .. state.group, prefix .. 'gm:' .. state.group, 0
  while looked < queues.LOOK do
    local places = redis.call('ZRANGEBYSCORE', queue, string.format('(%.0f', from), '+inf', 'LIMIT', 0, 100)
    if not places[1] then
      break
    end
    local found = redis.call('HMGET', messages, unpack(places))
    for i = 1, #places do
      local deadline = found[i] and queues.deadline_of(found[i])
      if deadline and deadline <= time then
        redis.call('ZREM', queue, places[i])
        redis.call('HDEL', messages, places[i])
        forget_expired(prefix, state, found[i])
      end
      seen = math.min(seen, deadline and deadline > time and deadline or seen)
    end
    from, looked = tonumber(places[#places]), looked + #places
  end
  return from, looked, seen
end

-- The same for messages of the list.
local function drop_expired_listed(prefix, state, from, looked, seen, time)
  local list, empty = prefix .. 'gw:' .. state.group, 0
  local first = state.place - redis.call('LLEN', list) + 1
  from = math.max(from, first - 1)
  while from < state.place and looked < queues.LOOK do
    local entries = redis.call('LRANGE', list, from - first + 1, from - first + 100)
    for i = 1, #entries do
      local deadline = queues.deadline_of(entries[i])
      if deadline and deadline <= time then
        redis.call('LSET', list, from - first + i, '')
        forget_expired(prefix, state, entries[i])
        empty = empty + 1
      end
      seen = math.min(seen, deadline and deadline > time and deadline or seen)
    end
    from, looked = from + #entries, looked + #entries
  end
  -- The list must not grow for ever behind messages that stay: for each that is dropped two leave its head, if they are
  -- not many. Those that have not expired wait with the others that have a place of their own.
  local left, kept = 2 * empty, 0
  while left > 0 and kept < 500 do
    local entry = redis.call('LPOP', list)
    if entry and entry ~= '' then
      keep(prefix, state.group, first, entry)
      kept = kept + 1
    elseif entry then
      empty = empty - 1
    end
    first, left = first + 1, entry and left - 1 or 0
  end
  backlog.lose_empty(prefix, state.group, -empty)
  return from, seen
end

-- A group is full: drop the messages that have expired, wherever they stand. A call looks at so many of them, and the
-- next one looks on.
local function drop_expired(prefix, state)
  local key, time = prefix .. 'g:' .. state.group, clock(prefix)
  local earliest, from, seen = queues.looks(redis.call('HGET', key, 'y'), 0)
  if earliest > time then
    return
  end
  local looked
  write_added(prefix, state)
  from, looked, seen = drop_expired_back(prefix, state, from, from > 0 and seen or queues.FAR, time)
  if looked < queues.LOOK then
    from, seen = drop_expired_listed(prefix, state, from, looked, seen, time)
  end
  if state.waiting == 0 then
    redis.call('DEL', prefix .. 'gw:' .. state.group)
    redis.call('HDEL', key, 'e')
  end
  state.looks_on = from < state.place
  if state.looks_on then
    redis.call('HSET', key, 'y', queues.looked(0, from, seen, 0))
  else
    redis.call('HSET', key, 'y', queues.looked(seen, 0, queues.FAR, 0))
  end
end

-- A message is to wait: make room for it. Returns the number of messages that are dropped for it, and whether it may
-- wait.
local function make_room(prefix, state, size)
  local dropped, most_bytes = 0, math.min(state.most_bytes, state.quota)
  local function is_full()
    return state.waiting > 0 and (state.waiting >= state.most or state.bytes + size > most_bytes)
  end
  if is_full() and not state.has_looked then
    state.has_looked = true
    drop_expired(prefix, state)
  end
  if state.looks_on then
    return 0, true
  end
  while state.drop_old and is_full() do
    state.bytes = state.bytes - drop_oldest(prefix, state)
    state.waiting, dropped = state.waiting - 1, dropped + 1
  end
  return dropped, not is_full()
end

-- A message that no node has room for. Returns the number of dropped messages.
local function wait(prefix, state, message)
  local place, deadline = state.place + 1, queues.deadline_of(message)
  if deadline then
    backlog.note_deadline(prefix .. 'g:' .. state.group, deadline)
  end
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

-- The first of these messages, which have at most this number of bytes, and how many the others are.
local function fitting(messages, most)
  local fit = {}
  for i = 1, most < math.huge and #messages or 0 do
    most = most - #messages[i]
    if most < 0 then
      return fit, #messages - i + 1
    end
    fit[i] = messages[i]
  end
  return messages, 0
end

-- New messages of a group: give them to those who have room; the others wait. `group_limits`, `limits`: see `share`.
-- Returns {dropped messages, expired ones that the full group had}.
local function share_to(prefix, group, messages, group_limits, outbox, limits)
  local state, dropped, given = state_of(prefix, group, group_limits, #messages, limits), 0, 0
  if not state then
    return {0, 0}
  end
  local rotation = state.rotation
  if rotation then
    messages, dropped = fitting(messages, state.quota)
    given = assign_all(prefix, rotation, state.place + 1, messages, outbox)
    state.place = state.place + given
  end
  for i = given + 1, #messages do
    dropped = dropped + wait(prefix, state, messages[i])
  end
  write_added(prefix, state)
  write_bytes(state.tenant, prefix .. 'g:' .. group, state.before, state.bytes, 'n',
    string.format('%.0f', state.place), 'v', rotation and rotation.now or state.time)
  if rotation then
    end_rotation(prefix, rotation, outbox)
  end
  return {dropped, state.expired}
end

-- New messages. `list`: group and places in `messages`, in turn. `group_limits`: max messages, max bytes, 1 = drop the
-- oldest; `limits`: see `tenants.free`. Returns the number of dropped messages, and of expired ones.
local function share(prefix, messages, list, group_limits, outbox, limits)
  local dropped, expired, groups = 0, 0, {}
  for i = 1, #list, 2 do
    local of, places = {}, list[i + 1]
    for j = 1, #places do
      of[j] = messages[places[j]]
    end
    groups[list[i]] = of
  end
  for group, of in pairs(groups) do
    local fine, counts = attempt(prefix, GROUP, group, share_to, prefix, group, of, group_limits, outbox, limits)
    if fine then
      dropped, expired = dropped + counts[1], expired + counts[2]
    end
  end
  return dropped, expired
end

return {share = share}
