-- Shared subscriptions: the steps of messages into groups, to nodes and sessions, and back; the members of groups; and
-- the groups that are declared. Each step can be repeated without effect, under the place of the message in its group.

-- A group that is declared has the member `d:`, so that it exists without others. Its settings are in the hash
-- `groups`, and one by one in the group's own hash, as `o:` and the name.
local DECLARED = 'd:'
local REDISPATCH = 5000       -- milliseconds, unless the nodes are configured otherwise

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
    note_tail(key, 0, place)
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
  local earliest, from, seen = queues.looks(redis.call('HGET', key, 'y'), '0')
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
    queues.note_looks(key, '0', 0, from, seen)
  else
    queues.note_looks(key, '0', seen, 0, queues.FAR)
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
    queues.note_deadline(prefix .. 'g:' .. state.group, deadline, true)
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
local function share_to(prefix, group, messages, group_limits, told, limits)
  local state, dropped, given = state_of(prefix, group, group_limits, #messages, limits), 0, 0
  if not state then
    return {0, 0}
  end
  local rotation = state.rotation
  if rotation then
    messages, dropped = fitting(messages, state.quota)
    given = lease_all(prefix, rotation, state.place + 1, messages, told)
    state.place = state.place + given
  end
  for i = given + 1, #messages do
    dropped = dropped + wait(prefix, state, messages[i])
  end
  write_added(prefix, state)
  write_bytes(state.tenant, prefix .. 'g:' .. group, state.before, state.bytes, 'n',
    string.format('%.0f', state.place), 'v', rotation and rotation.now or state.time)
  if rotation then
    end_rotation(prefix, rotation, told)
  end
  return {dropped, state.expired}
end

-- New messages. `list`: group and places in `messages`, in turn. `group_limits`: max messages, max bytes, 1 = drop the
-- oldest; `limits`: see `tenants.free`. Returns the number of dropped messages, and of expired ones.
local function share(prefix, messages, list, group_limits, told, limits)
  local dropped, expired, groups = 0, 0, {}
  for i = 1, #list, 2 do
    local of, places = {}, list[i + 1]
    for j = 1, #places do
      of[j] = messages[places[j]]
    end
    groups[list[i]] = of
  end
  for group, of in pairs(groups) do
    local fine, counts = attempt(prefix, GROUP, group, share_to, prefix, group, of, group_limits, told, limits)
    if fine then
      dropped, expired = dropped + counts[1], expired + counts[2]
    end
  end
  return dropped, expired
end

-- The message, with one more failure. `code`: reason code of its receiver, 0 = it was not acknowledged.
local function failed(message, code)
  local head, rest = split_key(message)
  local count = math.floor(rest:byte(1) / 16) == 4 and struct.unpack('<H', rest, 2) or 0
  return head .. struct.pack('<BHB', 64, math.min(count + 1, 65535), code) .. body_of(rest)
end

-- Mark entries of a queue as done; `done` has their numbers.
local function finish_entries(prefix, cid, done)
  local key, states, tenant = prefix .. 's:' .. cid, prefix .. 'st:' .. cid, tenants.of(cid)
  local state = redis.call('HMGET', key, 'h', 'b', 'z', 'r')
  local head, before, marks = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
  local noted = queues.done(key, marks)
  local bytes, acked = before, noted
  for i = 1, #done do
    local freed, more_marks, more_acked = queues.finish(prefix .. 'q:' .. cid, states, done[i], done[i] - head)
    bytes, marks, acked = bytes - freed, marks + more_marks, acked + more_acked
  end
  if tenant then
    tenants.add(tenant, bytes - before)
  end
  queues.drop_done(prefix, tenant, cid, head, head, bytes, marks, acked, noted, nil, state[4])
end

-- A message comes from a node that has no lease of it: the node has it again if that is the node of its key. Else it
-- waits.
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

-- A client has refused an entry of its session's queue: its message comes back, with one more failure; code 0: it may
-- not read it any more. An entry that is not there any more, or has another message, has come back in another way.
local function take_refused(prefix, node, cid, number, group, place, code)
  local head = tonumber(redis.call('HGET', prefix .. 's:' .. cid, 'h') or 0)
  if number < head or redis.call('HGET', prefix .. 'st:' .. cid, number) == 'd' then
    return
  end
  local value = redis.call('LINDEX', prefix .. 'q:' .. cid, number - head)
  local of, at, message = part_of_group(value or '')
  if of == group and at == place then
    finish_entries(prefix, cid, {number})
    take_from(prefix, node, group, place, code > 0 and failed(message, code) or message)
  end
end

-- The node gives keys up: what it has of them waits again. Nothing happens to a key if a lease is under way to the
-- node: the node repeats this when it has that lease, and gets no more until then. `keys`: key -> number of the last
-- lease that the node has got.
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
  each(#checks / 3, function(i)
    local group, key = checks[3 * i - 2], checks[3 * i - 1]
    local bound = binding_of(prefix, group, key)
    if not (bound and bound.node == node and bound.cid ~= '' and has_key(prefix, bound.cid, group, key, known)) then
      tell(prefix, node, 'key_free', group, key, checks[3 * i])
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, checks[3 * i - 2], reason)
  end)
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

-- Steps of messages between groups and nodes. `list`: step, group, place, text, number, code, in turn; the last three
-- depend on the step:
-- 'given', client id, incarnation: the block's pushes put the message into the session's queue;
-- 'back': the node has no use for it; 'put', heads, place in `messages`: the message waits again;
-- 'failed', failures: it was sent without success, and the node keeps it; 'dead': this block has its dead letter;
-- 'refused', client id, queue number, reason code: a client refuses it; with code 0 its client may not read it any
-- more, which is no failure.
-- `closed`: group, key, number of the last lease that the node has got, in turn: see `close_keys`. `told`: what nodes
-- have to be sent. Returns the groups to dispatch.
local function move(prefix, node, messages, list, closed, told)
  local finished, incarnations, waiting = {}, {}, {}
  local keyed, closing, rotations = {}, {}, {}
  each(#list / 6, function(i)
    local step, group, place, cid, number, code = unpack(list, 6 * i - 5, 6 * i)
    if step == 'given' then
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
        return_lease(prefix, node, group, place, rotations, told)
        waiting[group] = true
      end
    else
      waiting[group] = true
      if step == 'back' then
        return_lease(prefix, node, group, place)
      elseif step == 'dead' then
        append(finished, group, place)
      elseif step == 'failed' then
        local leases = leases_of(prefix, node, group)
        local message = redis.call('HGET', leases, place)
        if message then
          redis.call('HSET', leases, place, split_key(message) .. cid .. body_of(message))
        end
      elseif step == 'refused' then
        take_refused(prefix, node, cid, number, group, place, code)
      else
        take_from(prefix, node, group, place, cid .. messages[number])
      end
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, list[6 * i - 4], reason)
  end)
  for group, places in pairs(finished) do
    attempt(prefix, GROUP, group, end_leases, prefix, node, group, places)
  end
  backlog.end_taking_back(prefix, rotations, told)
  for i = 1, #closed, 3 do
    local group, key, number = unpack(closed, i, i + 2)
    closing[group] = closing[group] or {}
    closing[group][key] = number
    waiting[group] = true
  end
  for group, keys in pairs(closing) do
    attempt(prefix, GROUP, group, close_keys, prefix, node, group, keys)
  end
  return waiting
end

-- Acknowledged messages, the room of the caller, keys of which it has no message any more, and the room of its members
-- that get their messages by themselves. `list`: {group, place, ...}, {group, room, weight, total that the node knew,
-- bytes of the largest packet of QoS 0 that one of its members with room takes or 0 for any, ...}, {group, key, number
-- of its last lease, ...}, {{group, client id, epoch, limit, ...}, ...}, see `announce_member`.
local function settle(prefix, node, list, told)
  local done, rooms, idle, members = unpack(list)
  local finished, waiting = {}, {}
  for i = 1, #done, 2 do
    append(finished, done[i], done[i + 1])
  end
  for group, places in pairs(finished) do
    attempt(prefix, GROUP, group, end_leases, prefix, node, group, places)
  end
  each(#idle / 3, function(i)
    local group, key, number = unpack(idle, 3 * i - 2, 3 * i)
    local bound = binding_of(prefix, group, key)
    if bound and bound.node == node and tonumber(bound.number) == number then
      redis.call('HDEL', prefix .. 'gk:' .. group, key)
      waiting[group] = true
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, idle[3 * i - 2], reason)
  end)
  each(#rooms / 5, function(i)
    local group, announced, weight, known, largest = unpack(rooms, 5 * i - 4, 5 * i)
    local total = tonumber(redis.call('HGET', prefix .. 'go:' .. group, 't:' .. node) or 0)
    local room = announced - math.max(0, total - known)   -- less the leases that the node had not received
    if room <= 0 then
      redis.call('ZREM', prefix .. 'gr:' .. group, node)
      redis.call('HDEL', prefix .. 'go:' .. group, node, 'w:' .. node, 's:' .. node)
    else
      redis.call('HSET', prefix .. 'go:' .. group, node, room, 'w:' .. node, weight, 's:' .. node, largest)
      redis.call('SADD', prefix .. 'gn:' .. node, group)
      if not redis.call('ZSCORE', prefix .. 'gr:' .. group, node) then
        redis.call('ZADD', prefix .. 'gr:' .. group, redis.call('HGET', prefix .. 'g:' .. group, 'v') or 0, node)
      end
      waiting[group] = true
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, rooms[5 * i - 4], reason)
  end)
  each(#members, function(i)
    if announce_member(prefix, node, told, unpack(members[i])) then
      waiting[members[i][1]] = true
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, members[i][1], reason)
  end)
  dispatch_all(prefix, waiting, told)
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
  if is_member(member) then
    forget_member(prefix, group, member)
  end
  if node then
    redis.call('SREM', prefix .. 'gn:' .. node, group)
    redis.call('ZREM', prefix .. 'gr:' .. group, node)
    redis.call('HDEL', prefix .. 'go:' .. group, node, 'w:' .. node, 't:' .. node, 's:' .. node)
  end
  if redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 then
    local last = tonumber(redis.call('HGET', prefix .. 'g:' .. group, 'n') or 0)
    if last > tonumber(redis.call('HGET', prefix .. 'shared', 'n') or 0) then
      redis.call('HSET', prefix .. 'shared', 'n', string.format('%.0f', last))
    end
    empty_waiting(prefix, group)
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
      redis.call('HDEL', key, 'e')
      return
    end
    place = place + 1
    if message ~= '' then
      add_waiting(prefix, group, -#message)
      put_back(prefix, group, place, message)
    end
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
    local waiting = backlog.size(prefix, group)
    redis.call('HDEL', prefix .. 'groups', group)
    redis.call('DEL', prefix .. 'gv:' .. group, prefix .. 'gk:' .. group)
    leave_group(prefix, group, DECLARED)
    return redis.call('EXISTS', prefix .. 'gs:' .. group) == 0 and waiting or 0
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
      attempt(prefix, GROUP, name, leave_group, prefix, name, 'c:' .. cid)
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

-- All leases of a node in a group end.
local function return_leases(prefix, node, group, told)
  for _, place in ipairs(redis.call('HKEYS', leases_of(prefix, node, group))) do
    return_lease(prefix, node, group, tonumber(place))
  end
  dispatch(prefix, group, told)
end

-- A node has ended: what it had goes to others.
local function end_node_leases(prefix, node)
  local told = nothing_told()
  for _, group in ipairs(redis.call('SUNION', prefix .. 'gn:' .. node, prefix .. 'gl:' .. node)) do
    attempt(prefix, GROUP, group, unbind_all, prefix, node, group)
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gn:' .. node)) do
    attempt(prefix, GROUP, group, leave_group, prefix, group, 'n:' .. node, node)
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. node)) do
    attempt(prefix, GROUP, group, return_leases, prefix, node, group, told)
  end
  redis.call('DEL', prefix .. 'gn:' .. node)
  tell_all(prefix, '', told)
end

-- Give the messages in a session's queue back to their groups: those that were not sent, and with `sent` also those of
-- QoS 1 that were. `told`: what the caller will send to nodes; nil: this step sends it. Returns whether others of
-- groups stay.
give_back = function(prefix, cid, sent, told)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'n', 'g', 'o', 'w')
  if (state[2] or '') == '' then
    return false
  end
  local unsent = tonumber(state[1])
  if state[3] ~= '' or state[4] ~= '' then
    unsent = math.huge                           -- its connection, or one that still ends, may have got everything
  end
  local news, rotations, done, stay = told or nothing_told(), {}, {}, false
  each_of_groups(prefix, cid, function(number, group, place, message)
    if redis.call('HGET', prefix .. 'st:' .. cid, number) then
      return                                     -- its client has it
    elseif (number >= unsent or (sent and body_of(message):byte(1) % 4 == 1)) and attempt(prefix, GROUP, group,
        backlog.take_back, prefix, group, place, number >= unsent and message or failed(message, 0), rotations,
        news) then
      done[#done + 1] = number
    else
      stay = true
    end
  end)
  backlog.end_taking_back(prefix, rotations, news)
  if #done > 0 then
    finish_entries(prefix, cid, done)
    dispatch_all(prefix, rotations, news)
    if not told then
      tell_all(prefix, '', news)
    end
  end
  redis.call('HSET', prefix .. 's:' .. cid, 'g', stay and 1 or '')
  return stay
end

-- A session with messages of groups has no connection any more: what was not sent goes back, the rest after a while.
local function begin_grace(prefix, cid, told)
  if give_back(prefix, cid, false, told) then
    local time = clock(prefix) + tonumber(redis.call('HGET', prefix .. 'shared', 'redispatch') or REDISPATCH)
    redis.call('ZADD', prefix .. 'grace', string.format('%.0f', time), cid)
  end
end

register('declare_group', {}, function(prefix, node, group, settings)
  if not live(prefix, node) then
    return {'gone'}
  end
  if (redis.call('HGET', prefix .. 'groups', group) or '') == settings then
    return {'ok', 0, 0, 0}
  end
  local dropped, marked = declare(prefix, group, settings), mark()
  return {'ok', change(prefix, node, cmsgpack.pack({{'group', group, settings}, marked})), dropped, marked[2]}
end)

register('declared_groups', {'no-writes', 'allow-oom'}, function(prefix, cursor, most)
  return redis.call('HSCAN', prefix .. 'groups', cursor, 'COUNT', most)
end)

register('purge_group', {}, function(prefix, group)
  local waiting = backlog.size(prefix, group)
  if waiting > 0 then
    redis.call('UNLINK', prefix .. 'gq:' .. group, prefix .. 'gm:' .. group, prefix .. 'gw:' .. group,
      prefix .. 'gv:' .. group)
    redis.call('HDEL', prefix .. 'g:' .. group, 'e')
    empty_waiting(prefix, group)
  end
  return waiting
end)

register('waiting', {'no-writes', 'allow-oom'}, function(prefix, groups)
  local result = {}
  for _, group in ipairs(cmsgpack.unpack(groups)) do
    result[#result + 1] = backlog.size(prefix, group)
    result[#result + 1] = waiting_bytes(prefix, group)
  end
  return result
end)

register('lost_places', {'no-writes', 'allow-oom'}, function(prefix, node, places)
  if starts.are_missed(prefix, node) then
    return {'missed'}
  end
  local list, found = cmsgpack.unpack(places), {}
  local earlier = noted_tails(prefix) and not known[prefix .. node] and tails or {}
  each(#list / 2, function(i)
    local group, key = list[2 * i - 1], prefix .. 'g:' .. list[2 * i - 1]
    local last = tonumber(redis.call('HGET', key, 'n') or redis.call('HGET', prefix .. 'shared', 'n') or math.huge)
    if math.min(last, earlier[key] and earlier[key][2] or last) < list[2 * i] then
      found[#found + 1] = group
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, list[2 * i - 1], reason)
  end)
  if known and not found[1] then
    known[prefix .. node] = true
  end
  return {'ok', found}
end)

register('leased', {'no-writes', 'allow-oom'}, function(prefix, node)
  local leases, totals = {}, {}
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. node)) do
    attempt(prefix, GROUP, group, function()
      local found = redis.call('HGETALL', leases_of(prefix, node, group))
      local total = tonumber(redis.call('HGET', prefix .. 'go:' .. group, 't:' .. node) or 0)
      for i = 1, #found, 2 do
        leases[#leases + 1] = group
        leases[#leases + 1] = tonumber(found[i])
        leases[#leases + 1] = found[i + 1]
      end
      totals[#totals + 1] = group
      totals[#totals + 1] = total
    end)
  end
  return {leases, totals}
end)
