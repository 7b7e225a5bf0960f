-- Messages of groups between nodes, sessions and their groups. Each step can be repeated without effect, under the
-- place of the message in its group.

local append, notify = library.append, library.notify
local attempt, each, note_damage, GROUP = damage.attempt, damage.each, damage.note_damage, damage.GROUP
local FLAGS, entry_at = packed_sessions.FLAGS, packed_sessions.entry_at
local session_of, set_flag = packed_sessions.of, packed_sessions.set_flag
local body_of, has_key = backlog.body_of, backlog.has_key
local key_of, assignments_of = backlog.key_of, backlog.assignments_of
local part_of_group, put_back, split_key = backlog.part_of_group, backlog.put_back, backlog.split_key
local announce_subscriber = subscribers.announce_subscriber
local bind, binding_of, unbind, FOREIGN = rotation.bind, rotation.binding_of, rotation.unbind, rotation.FOREIGN
local end_assignments = assignments.end_assignments
local return_assignment = assignments.return_assignment

local RETURN = 10             -- bytes of the number of a message that comes back from another shard

-- The message, with one more failure. `code`: reason code of its receiver, 0 = it was not acknowledged.
local function failed(message, code)
  local head, rest = split_key(message)
  local count = math.floor(rest:byte(1) / 16) == 4 and struct.unpack('<H', rest, 2) or 0
  return head .. struct.pack('<BHB', 64, math.min(count + 1, 65535), code) .. body_of(rest)
end

-- Mark entries of a queue as done; `done` has their numbers.
local function finish_entries(session, done)
  for i = 1, #done do
    queues.finish(session, done[i])
  end
  queues.drop_done(session, session.head)
end

-- A message comes from a node that has no assignment of it: the node has it again if that is the node of its key. Else
-- it waits.
local function take_from(prefix, node, group, place, message)
  local key = key_of(message)
  local bound = key and binding_of(prefix, group, key)
  if bound and bound.node == node then
    redis.call('HSET', assignments_of(prefix, node, group), place, message)
    redis.call('SADD', prefix .. 'gl:' .. node, group)
  else
    put_back(prefix, group, place, message)
  end
end

-- A client has refused an entry of its session's queue: its message comes back, with one more failure; code 0: it may
-- not read it any more. An entry that is not there any more, or has another message, has come back in another way.
local function take_refused(prefix, node, cid, number, group, place, code)
  local session = session_of(prefix, cid)
  if not session or number < session.head or redis.call('HGET', queues.states_of(session), number) == 'd' then
    return
  end
  local of, at, message = part_of_group(entry_at(session, number - session.head) or '')
  if of == group and at == place then
    finish_entries(session, {number})
    take_from(prefix, node, group, place, code > 0 and failed(message, code) or message)
  end
end

-- The node gives keys up: what it has of them waits again. Nothing happens to a key if an assignment is under way to
-- the node: the node repeats this when it has that assignment, and gets no more until then. A call for an earlier
-- binding repeats a call that has succeeded. `keys`: key -> number of the last assignment that the node has got.
local function close_keys(prefix, node, group, keys)
  local closed = {}
  for key, number in pairs(keys) do
    local bound = binding_of(prefix, group, key)
    local is_bound = bound and bound.node == node
    if is_bound and tonumber(bound.first) <= number and number < tonumber(bound.number) then
      bound.closing = true
      bind(prefix, group, key, bound)
    else
      if not is_bound or tonumber(bound.number) == number then
        closed[key] = true
      end
      if closed[key] and is_bound then
        unbind(prefix, group, key, bound)
      end
      notify(prefix, node, 'key_closed', group, key, number)
    end
  end
  local assignments = redis.call('HGETALL', assignments_of(prefix, node, group))
  for i = 1, #assignments, 2 do
    if closed[key_of(assignments[i + 1]) or ''] then
      return_assignment(prefix, node, group, tonumber(assignments[i]))
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
    local cid = bound and bound.node == node and bound.cid or ''
    if cid:sub(1, 1) == FOREIGN then
      notify(prefix, node, 'key_elsewhere', group, key, checks[3 * i], cid:sub(2))
    elseif cid == '' or not has_key(prefix, cid, group, key, known) then
      notify(prefix, node, 'key_free', group, key, checks[3 * i])
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, checks[3 * i - 2], reason)
  end)
end

-- A message comes back from another shard. `text`: its number, and the message.
local function take_returned(prefix, node, group, place, text, rotations, outbox)
  local number = text:sub(1, RETURN)
  if redis.call('HSETNX', prefix .. 'once', number, node) == 1 then
    redis.call('SADD', prefix .. 'once:' .. node, number)
    backlog.take_back(prefix, group, place, text:sub(RETURN + 1), rotations, outbox)
  end
end

-- A session has got the message of an assignment.
local function note_session(prefix, node, group, place, cid)
  local key = key_of(redis.call('HGET', assignments_of(prefix, node, group), place) or '\0')
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
-- more, which is no failure;
-- 'moved', client id: a session of another shard has got the message; 'returned', number and message: it comes back.
-- `closed`: group, key, number of the last assignment that the node has got, in turn: see `close_keys`. `outbox`: what
-- nodes have to be sent. Returns the groups to dispatch.
local function move(prefix, node, messages, list, closed, outbox)
  local finished, incarnations, waiting = {}, {}, {}
  local keyed, closing, rotations = {}, {}, {}
  each(#list / 6, function(i)
    local step, group, place, cid, number, code = unpack(list, 6 * i - 5, 6 * i)
    if step == 'given' then
      if not incarnations[cid] then
        local session = session_of(prefix, cid)
        incarnations[cid] = session and session.incarnation or -1
        if incarnations[cid] == number then
          set_flag(session, FLAGS.GROUPED, true)
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
        return_assignment(prefix, node, group, place, rotations, outbox)
        waiting[group] = true
      end
    else
      waiting[group] = true
      if step == 'back' then
        return_assignment(prefix, node, group, place)
      elseif step == 'moved' then
        note_session(prefix, node, group, place, FOREIGN .. cid)
        append(finished, group, place)
      elseif step == 'returned' then
        take_returned(prefix, node, group, place, cid, rotations, outbox)
      elseif step == 'dead' then
        append(finished, group, place)
      elseif step == 'failed' then
        local assignments = assignments_of(prefix, node, group)
        local message = redis.call('HGET', assignments, place)
        if message then
          redis.call('HSET', assignments, place, split_key(message) .. cid .. body_of(message))
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
    attempt(prefix, GROUP, group, end_assignments, prefix, node, group, places)
  end
  backlog.end_taking_back(prefix, rotations, outbox)
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

-- Acknowledged messages, the room of the caller, keys of which it has no message any more, and the room of its
-- subscribers that get their messages by themselves. `list`: {group, place, ...}, {group, room, weight, total that the
-- node knew, bytes of the largest packet of QoS 0 that one of its subscribers with room takes or 0 for any, ...},
-- {group, key, number of its last assignment, ...}, {{group, client id, epoch, limit, ...}, ...}, see
-- `announce_subscriber`.
local function settle(prefix, node, list, outbox)
  local done, rooms, idle, subscribers = unpack(list)
  local finished, waiting = {}, {}
  for i = 1, #done, 2 do
    append(finished, done[i], done[i + 1])
  end
  for group, places in pairs(finished) do
    attempt(prefix, GROUP, group, end_assignments, prefix, node, group, places)
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
    local room = announced - math.max(0, total - known)   -- less the assignments that the node had not received
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
  each(#subscribers, function(i)
    if announce_subscriber(prefix, node, outbox, unpack(subscribers[i])) then
      waiting[subscribers[i][1]] = true
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, subscribers[i][1], reason)
  end)
  return waiting
end

return {
  check_keys = check_keys, failed = failed, finish_entries = finish_entries, move = move, note_session = note_session,
  settle = settle,
}
