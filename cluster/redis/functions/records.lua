-- Applies the records of a block: subscriptions, routes, retained messages.

local in_parts = library.in_parts
local attempt, each, note_damage, CLIENT = damage.attempt, damage.each, damage.note_damage, damage.CLIENT
local GROUP = damage.GROUP
local clock, CLOCK_AHEAD = clock.clock, clock.CLOCK_AHEAD
local change = changes.change
local session_of = packed_sessions.of
local is_group = backlog.is_group
local join_group, leave_group = groups.join_group, groups.leave_group

-- Apply a record of a change; `retained`: messages by topic name that are not written yet, '' = to be removed;
-- `comes_back`: a later record of the block has the route that this one removes. Returns whether it is valid, so that
-- the other nodes have to apply it too.
local function apply_record(prefix, node, record, retained, comes_back)
  local kind, name = record[1], record[2]
  if kind == 'subscribed' or kind == 'unsubscribed' then
    local cid, filter = name, record[4]
    local session = session_of(prefix, cid)
    if not session or session.incarnation ~= record[3] then
      return false
    end
    if kind == 'subscribed' then
      redis.call('HSET', prefix .. 'subs:' .. cid, filter, record[5] .. ';' .. record[6])
    else
      redis.call('HDEL', prefix .. 'subs:' .. cid, filter)
    end
    if is_group(filter) and not record[kind == 'subscribed' and 7 or 5] then    -- else another shard has the group
      attempt(prefix, GROUP, filter, kind == 'subscribed' and join_group or leave_group, prefix, filter, 'c:' .. cid)
    end
  elseif kind == 'route' then
    redis.call('HSET', prefix .. 'routes:' .. node, name, table.concat(record, ' ', 3, 6))
    if is_group(name) and not record[7] then
      attempt(prefix, GROUP, name, join_group, prefix, name, 'n:' .. node, node)
    end
  elseif kind == 'unroute' then
    redis.call('HDEL', prefix .. 'routes:' .. node, name)
    -- If it comes back, the room that the node has announced with this block stays.
    if is_group(name) and not record[3] and not comes_back then
      attempt(prefix, GROUP, name, leave_group, prefix, name, 'n:' .. node, node)
    end
  elseif kind == 'joined' or kind == 'parted' then
    local owner = record[4] ~= '' and record[4] or nil
    if kind == 'joined' or not (owner and comes_back) then
      attempt(prefix, GROUP, name, kind == 'joined' and join_group or leave_group, prefix, name, record[3], owner)
    end
    return false
  elseif kind == 'expired' then
    -- Each node drops its own copy; the value in Redis may be newer than theirs.
    local deadline = queues.deadline_of(retained[name] or redis.call('HGET', prefix .. 'retained', name) or '')
    if deadline and deadline <= clock(prefix) + CLOCK_AHEAD then
      retained[name] = ''
    end
    return false
  elseif kind == 'retained' then
    retained[name] = record[3]
  end
  return true
end

local function apply_one(i, job)
  local record = job.list[i]
  if apply_record(job.prefix, job.node, record, job.retained, (job.routed[record[2]] or 0) > i) then
    local is_value = record[1] == 'retained'
    job.has_values = job.has_values or is_value
    job.kept[#job.kept + 1] = record
    job.slim[#job.slim + 1] = is_value and {'outdated', record[2]} or record
  end
end

local function apply_failed(i, reason, job)
  note_damage(job.prefix, CLIENT, job.list[i][2], reason)
end

-- Apply the changes of a block. `list`: its records; the last one is the mark of the change. Returns the number of the
-- change; 0 if no record of it is valid.
local function apply(prefix, node, block, list)
  local job = {prefix = prefix, node = node, list = list, kept = {}, slim = {}, has_values = false, retained = {},
    routed = {}}
  for i = 1, #list do
    if list[i][1] == 'route' or list[i][1] == 'joined' and list[i][4] == node then
      job.routed[list[i][2]] = i
    end
  end
  each(#list, apply_one, apply_failed, job)
  local kept, written, removed = job.kept, {}, {}
  for topic, message in pairs(job.retained) do
    if message == '' then
      removed[#removed + 1] = topic
    else
      written[#written + 1], written[#written + 2] = topic, message
    end
  end
  in_parts('HSET', prefix .. 'retained', written, 2)
  in_parts('HDEL', prefix .. 'retained', removed)
  if #kept == 0 or (#kept == 1 and kept[1][1] == 'mark') then
    return 0
  end
  if #kept < #list then
    block = cmsgpack.pack(kept)
  end
  return change(prefix, node, block, job.has_values and cmsgpack.pack(job.slim) or block)
end

return {apply = apply}
