-- Groups: their subscribers, their declarations, and the end of a subscriber.

local register = library.register
local attempt, each, note_damage, GROUP = damage.attempt, damage.each, damage.note_damage, damage.GROUP
local live = nodes.live
local clock = clock.clock
local FLAGS, has, set_flag = packed_sessions.FLAGS, packed_sessions.has, packed_sessions.set_flag
local starts = redis_restarts.starts
local change, mark = changes.change, changes.mark
local add_waiting, empty_waiting, waiting_bytes = tenants.add_waiting, tenants.empty_waiting, tenants.waiting_bytes
local body_of, each_of_groups, is_group = backlog.body_of, backlog.each_of_groups, backlog.is_group
local assignments_of, put_back = backlog.assignments_of, backlog.put_back
local forget_subscriber, is_subscriber = subscribers.forget_subscriber, subscribers.is_subscriber
local new_outbox, send_outbox = subscribers.new_outbox, subscribers.send_outbox
local binding_of, unbind, FOREIGN = rotation.binding_of, rotation.unbind, rotation.FOREIGN
local dispatch, dispatch_all = assignments.dispatch, assignments.dispatch_all
local end_assignments = assignments.end_assignments
local return_assignment = assignments.return_assignment
local failed, finish_entries, note_session = transfers.failed, transfers.finish_entries, transfers.note_session
local digest_of, send_back = returns.digest_of, returns.send_back

-- A group that is declared has the subscriber `d:`, so that it exists without others. Its settings are in the hash
-- `groups`, and one by one in the group's own hash, as `o:` and the name.
local DECLARED = 'd:'

local REDISPATCH = 5000       -- milliseconds, unless the nodes are configured otherwise

-- A session or a node becomes a subscriber of a group.
local function join_group(prefix, group, subscriber, node)
  redis.call('SADD', prefix .. 'gs:' .. group, subscriber)
  redis.call('HSETNX', prefix .. 'g:' .. group, 'n', redis.call('HGET', prefix .. 'shared', 'n') or 0)
  if node then
    redis.call('SADD', prefix .. 'gn:' .. node, group)
  end
end

-- A subscriber leaves; the group ends with the last one. A later group with its name has higher places:
-- acknowledgements of messages that its subscribers have got may still arrive. The rooms of other nodes stay: a node
-- announces its room just before it joins.
local function leave_group(prefix, group, subscriber, node)
  redis.call('SREM', prefix .. 'gs:' .. group, subscriber)
  if is_subscriber(subscriber) then
    forget_subscriber(prefix, group, subscriber)
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

local function leave_groups(prefix, cid)
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

-- All assignments of a node in a group end.
local function return_assignments(prefix, node, group, outbox)
  for _, place in ipairs(redis.call('HKEYS', assignments_of(prefix, node, group))) do
    return_assignment(prefix, node, group, tonumber(place))
  end
  dispatch(prefix, group, outbox)
end

-- A node has ended: what it had goes to others. If it is `in_doubt`, it has died, and may have put messages into queues
-- of other shards: these messages are its own, and their keys, until `end_doubt`.
local function end_node_assignments(prefix, node, in_doubt)
  local outbox = new_outbox()
  in_doubt = in_doubt and redis.call('EXISTS', prefix .. 'gl:' .. node) == 1
  for _, group in ipairs(redis.call('SUNION', prefix .. 'gn:' .. node, prefix .. 'gl:' .. node)) do
    if not (in_doubt and redis.call('SISMEMBER', prefix .. 'gl:' .. node, group) == 1) then
      attempt(prefix, GROUP, group, unbind_all, prefix, node, group)
    end
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gn:' .. node)) do
    attempt(prefix, GROUP, group, leave_group, prefix, group, 'n:' .. node, node)
  end
  if in_doubt then
    redis.call('SADD', prefix .. 'in_doubt', node)
    redis.call('DEL', prefix .. 'gn:' .. node)
    return
  end
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. node)) do
    attempt(prefix, GROUP, group, return_assignments, prefix, node, group, outbox)
  end
  redis.call('DEL', prefix .. 'gn:' .. node)
  send_outbox(prefix, '', outbox)
end

-- Give the messages in a session's queue back to their groups: those that were not sent, and with `sent` also those of
-- QoS 1 that were. `outbox`: what the caller will send to nodes; nil: this step sends it. Returns whether others of
-- groups stay.
local function give_back(session, sent, outbox)
  if not has(session, FLAGS.GROUPED) then
    return false
  end
  local prefix, unsent = session.prefix, session.sent
  if session.owner ~= '' or session.waits ~= '' then
    unsent = math.huge                           -- its connection, or one that still ends, may have got everything
  end
  local news, rotations, done, stay = outbox or new_outbox(), {}, {}, false
  each_of_groups(session, function(number, group, place, message, elsewhere)
    if redis.call('HGET', queues.states_of(session), number) then
      return                                     -- its client has it
    end
    local goes = number >= unsent or (sent and body_of(message):byte(1) % 4 == 1)
    message = number >= unsent and message or failed(message, 0)
    if goes and elsewhere then
      send_back(prefix, session.cid, group, place, message)
      done[#done + 1] = number
    elseif goes and attempt(prefix, GROUP, group, backlog.take_back, prefix, group, place, message, rotations,
        news) then
      done[#done + 1] = number
    else
      stay = true
    end
  end)
  backlog.end_taking_back(prefix, rotations, news)
  if #done > 0 then
    finish_entries(session, done)
    dispatch_all(prefix, rotations, news)
    if not outbox then
      send_outbox(prefix, '', news)
    end
  end
  set_flag(session, FLAGS.GROUPED, stay)
  return stay
end

-- A session with messages of groups has no connection any more: what was not sent goes back, the rest after a while.
local function begin_grace(session, outbox)
  if give_back(session, false, outbox) then
    local prefix = session.prefix
    local time = clock(prefix) + tonumber(redis.call('HGET', prefix .. 'shared', 'redispatch') or REDISPATCH)
    redis.call('ZADD', prefix .. 'grace', string.format('%.0f', time), session.cid)
  end
end

register('end_doubt', {'allow-oom'}, function(prefix, dead, offered)
  if redis.call('SREM', prefix .. 'in_doubt', dead) == 0 then
    return {'ok'}
  end
  local groups, outbox = redis.call('SMEMBERS', prefix .. 'gl:' .. dead), new_outbox()
  for _, each_offered in ipairs(cmsgpack.unpack(offered)) do
    local group, place, cid, digest = unpack(each_offered)
    attempt(prefix, GROUP, group, function()
      local message = redis.call('HGET', assignments_of(prefix, dead, group), place)
      if message and digest_of(message) == digest then
        note_session(prefix, dead, group, place, FOREIGN .. cid)
        end_assignments(prefix, dead, group, {place})
      end
    end)
  end
  for _, group in ipairs(groups) do
    attempt(prefix, GROUP, group, unbind_all, prefix, dead, group)
    attempt(prefix, GROUP, group, return_assignments, prefix, dead, group, outbox)
  end
  send_outbox(prefix, '', outbox)
  return {'ok'}
end)

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
  local earlier = redis_restarts.tails_for(prefix, node)
  each(#list / 2, function(i)
    local group, key = list[2 * i - 1], prefix .. 'g:' .. list[2 * i - 1]
    local last = tonumber(redis.call('HGET', key, 'n') or redis.call('HGET', prefix .. 'shared', 'n') or math.huge)
    if math.min(last, earlier[key] and earlier[key][2] or last) < list[2 * i] then
      found[#found + 1] = group
    end
  end, function(i, reason)
    note_damage(prefix, GROUP, list[2 * i - 1], reason)
  end)
  if not found[1] then
    redis_restarts.note_compared(prefix, node)
  end
  return {'ok', found}
end)

register('assigned', {'no-writes', 'allow-oom'}, function(prefix, node)
  local assignments, totals = {}, {}
  for _, group in ipairs(redis.call('SMEMBERS', prefix .. 'gl:' .. node)) do
    attempt(prefix, GROUP, group, function()
      local found = redis.call('HGETALL', assignments_of(prefix, node, group))
      local total = tonumber(redis.call('HGET', prefix .. 'go:' .. group, 't:' .. node) or 0)
      for i = 1, #found, 2 do
        assignments[#assignments + 1] = group
        assignments[#assignments + 1] = tonumber(found[i])
        assignments[#assignments + 1] = found[i + 1]
      end
      totals[#totals + 1] = group
      totals[#totals + 1] = total
    end)
  end
  return {assignments, totals}
end)

session_ends.give_back, session_ends.leave_groups = give_back, leave_groups
return {
  begin_grace = begin_grace, end_node_assignments = end_node_assignments, give_back = give_back,
  join_group = join_group,
  leave_group = leave_group,
}
