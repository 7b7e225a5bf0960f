-- The state in pieces: a node reads it when it joins, or when its link is back.

local register, AT_ONCE, AT_ONCE_BYTES = library.register, library.AT_ONCE, library.AT_ONCE_BYTES
local each, note_damage, CLIENT = damage.each, damage.note_damage, damage.CLIENT
local read, incarnation_of = packed_sessions.read, packed_sessions.incarnation_of

register('sessions', {'no-writes', 'allow-oom'}, function(prefix, cursor, most)
  local found = redis.call('SSCAN', prefix .. 'sessions', cursor, 'COUNT', most)
  local sessions, count = {}, 0
  read(prefix, found[2])
  each(#found[2], function(i)
    local cid = found[2][i]
    local subs = redis.call('HGETALL', prefix .. 'subs:' .. cid)
    if #subs > 0 then
      sessions[count + 1], sessions[count + 2], sessions[count + 3] = cid, incarnation_of(cid), subs
      count = count + 3
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[2][i], reason)
  end)
  return {found[1], sessions}
end)

register('retained', {'no-writes', 'allow-oom'}, function(prefix, cursor, most)
  local found = redis.call('HSCAN', prefix .. 'retained', cursor, 'COUNT', most)
  local messages, size = {}, 0
  for i = 1, #found[2], 2 do
    local message = found[2][i + 1]
    size = size + #message
    messages[#messages + 1] = found[2][i]
    messages[#messages + 1] = size <= AT_ONCE_BYTES and message or ''
  end
  return {found[1], messages}
end)

register('values', {'no-writes', 'allow-oom'}, function(prefix, topics)
  local result, size = {}, 0
  for _, topic in ipairs(cmsgpack.unpack(topics)) do
    local message = redis.call('HGET', prefix .. 'retained', topic) or ''
    result[#result + 1] = message
    size = size + #message
    if size > AT_ONCE_BYTES then
      break
    end
  end
  return result
end)

-- The number after a seq.
local function seq_after(id)
  return string.format('%.0f', tonumber(id:match('^%d+')) + 1)
end

-- The batch of an entry without its header, or nil if it is not for `me`, a node between spaces.
local function batch_for(me, fields)
  if not fields[4]:find(me, 1, true) then
    return nil
  end
  local batch = fields[2]
  return batch:sub(2 + batch:byte(2) + 8 + 1)
end

-- Note the next entry of a log, and its place among the entries of all logs.
local function look_ahead(log)
  log.entry = redis.call('XRANGE', log.key, log.from .. '-0', '+', 'COUNT', 1)[1]
  log.order = log.entry and tonumber(log.entry[2][6]) or math.huge
end

-- Read the logs of nodes as one, in the order in which Redis has executed the commits: a publisher may have moved from
-- one node to another.
register('logs', {'no-writes', 'allow-oom'}, function(prefix, node, positions)
  local me, list, logs = ' ' .. node .. ' ', cmsgpack.unpack(positions), {}
  for i = 1, #list, 2 do
    local log = {key = prefix .. 'log:' .. list[i], from = string.format('%.0f', list[i + 1])}
    look_ahead(log)
    logs[#logs + 1] = log
  end
  local more, following, batches, size = 1, {}, {}, 0
  for _ = 1, AT_ONCE do
    local first = {order = math.huge}
    for i = 1, #logs do
      if logs[i].order < first.order then
        first = logs[i]
      end
    end
    if not first.entry then
      more = 0
      break
    end
    local batch = batch_for(me, first.entry[2])
    first.from = seq_after(first.entry[1])
    look_ahead(first)
    if batch then
      batches[#batches + 1] = batch
      size = size + #batch
      if size > AT_ONCE_BYTES then
        break
      end
    end
  end
  for i = 1, #logs do
    following[i] = tonumber(logs[i].from)
  end
  return {more, following, batches}
end)
