-- Nodes: they join, send heartbeats, leave, and are declared dead.

local publish, register, notify = library.publish, library.register, library.notify
local attempt, each, note_damage, CLIENT = damage.attempt, damage.each, damage.note_damage, damage.CLIENT
local live, seq_of = nodes.live, nodes.seq_of
local advance_clock, clock = clock.advance_clock, clock.clock
local starts = redis_restarts.starts
local change, mark = changes.change, changes.mark
local FLAGS, delete, has = packed_sessions.FLAGS, packed_sessions.delete, packed_sessions.has
local session_of, set_rare = packed_sessions.of, packed_sessions.set_rare
local earlier, end_session, held = session_ends.earlier, session_ends.end_session, session_ends.held
local begin_grace, end_node_assignments = groups.begin_grace, groups.end_node_assignments

-- `shards`: the shards of the cluster that this server has, as the configuration of the node says, '' = it is the only
-- one. `base`: the prefix of the first.
register('join', {}, function(prefix, node, layout, description, base, shards)
  if shards ~= '' and redis.call('EXISTS', base .. 'layout') == 0 then
    redis.call('SETNX', base .. 'shards', shards)
  end
  local found = redis.call('GET', base .. 'shards') or ''
  if found ~= shards then
    return {'shards', found}
  end
  redis.call('SETNX', prefix .. 'layout', layout)
  found = redis.call('GET', prefix .. 'layout')
  if found ~= layout then
    return {'layout', found}
  end
  local off = downtime.begin(prefix, redis.call('HKEYS', prefix .. 'nodes'))
  redis.call('HSET', prefix .. 'nodes', node, 1)
  local process = starts.count(prefix)
  redis_restarts.note_compared(prefix, node)
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', 0, 'state', 'joining', 'starts', process,
    unpack(cmsgpack.unpack(description)))
  return {'ok', tonumber(redis.call('GET', prefix .. 'change') or 0), clock(prefix), off}
end)

register('ready', {}, function(prefix, node)
  if not live(prefix, node) then
    return {'gone'}
  end
  barrier.add(prefix, node)
  redis.call('HSET', prefix .. 'node:' .. node, 'state', 'ready')
  local number, nodes = change(prefix, node, cmsgpack.pack({{'ready', node}, mark()})), {}
  for _, other in ipairs(redis.call('HKEYS', prefix .. 'nodes')) do
    nodes[#nodes + 1] = other
    nodes[#nodes + 1] = tonumber(redis.call('HGET', prefix .. 'node:' .. other, 'seq') or 0)
    nodes[#nodes + 1] = redis.call('HGET', prefix .. 'node:' .. other, 'state') or ''
  end
  return {'ok', number, nodes}
end)

-- Count a heartbeat of a node. Returns its last seq; nil: it is no member.
local function confirm(prefix, node)
  local seq = live(prefix, node) and seq_of(prefix, node)
  if not seq then
    return nil
  end
  redis.call('HINCRBY', prefix .. 'nodes', node, 1)
  starts.count(prefix)
  return seq
end

register('confirm', {'allow-oom'}, function(prefix, node)
  return {confirm(prefix, node) and 'ok' or 'gone'}
end)

register('leaving', {'allow-oom'}, function(prefix, node)
  if not confirm(prefix, node) then
    return {'gone'}
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'state', 'leaving')
  return {'ok'}
end)

register('beat', {'allow-oom'}, function(prefix, node, elapsed, description)
  if not confirm(prefix, node) then
    return {'gone'}
  end
  redis_restarts.note_compared(prefix, node)
  local epoch = redis.pcall('GET', prefix .. 'epoch')
  redis.call('HSET', prefix .. 'node:' .. node, 'epoch', type(epoch) == 'string' and epoch or 0, 'starts',
    starts.count(prefix), unpack(cmsgpack.unpack(description)))
  local change, due = tonumber(redis.call('GET', prefix .. 'change') or 0), 0
  local time = advance_clock(prefix, tonumber(elapsed), node)
  starts.begin_rest(prefix, time)
  for _, name in ipairs(starts.rests(prefix, time) and {'grace'} or {'delayed', 'ends', 'grace'}) do
    if #redis.call('ZRANGEBYSCORE', prefix .. name, '-inf', string.format('%.0f', time), 'LIMIT', 0, 1) > 0 then
      due = 1
    end
  end
  return {'ok', change, time, due, redis.call('HGETALL', prefix .. 'nodes')}
end)

register('resume', {'allow-oom'}, function(prefix, node, process)
  local seq = confirm(prefix, node)
  if not seq then
    return {'gone'}
  end
  local key = prefix .. 'node:' .. node
  local state = redis.call('HMGET', key, 'calls', 'starts')
  if tonumber(process) > (tonumber(state[2]) or 0) then
    redis.call('HSET', key, 'starts', process)
  end
  return {'ok', seq, tonumber(redis.call('GET', prefix .. 'change') or 0), tonumber(state[1]) or 0}
end)

register('clock', {'allow-oom'}, function(prefix, node, elapsed)
  return advance_clock(prefix, tonumber(elapsed), node)
end)

local NODE = {kind = 'node', 'node:', 'hash', 'routes:', 'hash', 'wills:', 'hash', 'owned:', 'set', 'log:', 'stream',
  'gl:', 'set', 'gn:', 'set', 'queued:', 'hash', 'once:', 'set'}

-- The bytes in the queues that a node has itself, which are not in Redis. `list`: tenants and their bytes in turn; the
-- bytes of other tenants are 0.
local function report_queued(prefix, node, list)
  local key, bytes = prefix .. 'queued:' .. node, {}
  for _, tenant in ipairs(redis.call('HKEYS', key)) do
    bytes[tenant] = 0
  end
  for i = 1, #list, 2 do
    bytes[list[i]] = list[i + 1]
  end
  for tenant, count in pairs(bytes) do
    tenants.add(tenant, count - (tonumber(redis.call('HGET', key, tenant)) or 0))
    if count == 0 then
      redis.call('HDEL', key, tenant)
    else
      redis.call('HSET', key, tenant, count)
    end
  end
end

register('queued', {'allow-oom'}, function(prefix, node, reported)
  if not live(prefix, node) then
    return {'gone'}
  end
  local list, elsewhere = cmsgpack.unpack(reported), {}
  report_queued(prefix, node, list)
  tenants.write(prefix)
  for i = 1, #list, 2 do
    local total = tenants.total(prefix, list[i])
    if total == 0 then
      redis.pcall('HDEL', prefix .. 'queued:tenants', list[i])
    end
    elsewhere[#elsewhere + 1] = total - list[i + 1]
  end
  return {'ok', elsewhere}
end)

-- A node ends, and with it what is damaged of it. `in_doubt`: as for `end_node_assignments`.
local function remove(prefix, node, is_dead, in_doubt)
  redis.call('HDEL', prefix .. 'nodes', node)
  attempt(prefix, barrier.KEYS, '', barrier.remove, prefix, node)
  attempt(prefix, NODE, node, end_node_assignments, prefix, node, in_doubt)
  attempt(prefix, NODE, node, report_queued, prefix, node, {})
  attempt(prefix, NODE, node, once.node_ends, prefix, node, is_dead)
  redis.call('DEL', prefix .. 'node:' .. node, prefix .. 'routes:' .. node, prefix .. 'wills:' .. node)
  attempt(prefix, NODE, node, function()
    -- Other nodes may still read its log. (A key that expires does so by the wall clock, which may step.)
    redis.call('ZADD', prefix .. 'left', string.format('%.0f', clock(prefix) + 60000), node)
  end)
  if redis.call('EXISTS', prefix .. 'owned:' .. node) == 1 then
    redis.call('SADD', prefix .. 'dead', node)
  end
  return change(prefix, '', cmsgpack.pack({{'left', node}, mark()}))
end

register('bury', {'allow-oom'}, function(prefix, node, dead, heartbeats, in_doubt)
  local count = redis.call('HGET', prefix .. 'nodes', dead)
  if not live(prefix, node) or not count or (heartbeats ~= '' and count ~= heartbeats) then
    return {'lives'}
  end
  local result = {}
  local readable, left = attempt(prefix, NODE, dead, redis.call, 'HGETALL', prefix .. 'wills:' .. dead)
  left = readable and left or {}
  local gives_back = false
  each(#left / 2, function(i)
    local epoch, will = left[2 * i - 1], left[2 * i]
    if delayed.give_back(prefix, epoch, will) then
      gives_back = true
      return
    end
    local cid = wills.client_of(will)
    local session, delay = session_of(prefix, cid), wills.delay_of(will)
    local owner, is_last = session and session.owner, session and session.epoch == tonumber(epoch)
    if delay > 0 and session and has(session, FLAGS.PERSISTENT) and tonumber(epoch) >= session.incarnation
        and not (is_last and session.interval == '0') then
      -- The session outlives its connection: the will waits, or is held if another connection has claimed the session.
      local seconds = session.interval == '' and delay or math.min(delay, tonumber(session.interval))
      local due = string.format('%.0f', clock(prefix) + seconds * 1000)
      redis.call('HSET', prefix .. 'delayed:wills', epoch, will)
      if is_last then
        redis.call('ZADD', prefix .. 'delayed', due, epoch)
        set_rare(session, 'd', epoch)
      else
        held.hold(session, tonumber(epoch), due)
      end
    elseif owner and owner ~= '' and owner ~= dead and owner ~= node and live(prefix, owner) then
      redis.call('HSET', prefix .. 'wills:' .. owner, epoch, will)
      notify(prefix, owner, 'adopt', tonumber(epoch), will)
    else
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
      result[#result + 1] = tonumber(epoch)
      result[#result + 1] = will
    end
  end, function(i, reason)
    local epoch, will = left[2 * i - 1], left[2 * i]
    note_damage(prefix, CLIENT, wills.client_of(will), reason)
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
    result[#result + 1] = tonumber(epoch)
    result[#result + 1] = will
  end)
  if gives_back then
    publish(prefix .. 'all', cmsgpack.pack({'later', 0}))
  end
  remove(prefix, dead, true, in_doubt == '1')
  attempt(prefix, NODE, dead, downtime.lose, prefix, dead, true)
  return {'ok', result}
end)

-- The wills that a node has to publish are due for any node: it leaves, and may have got them from a dead one just
-- before.
local function pass_on_wills(prefix, node)
  local left = redis.call('HGETALL', prefix .. 'wills:' .. node)
  for i = 1, #left, 2 do
    if not delayed.give_back(prefix, left[i], left[i + 1]) then
      redis.call('HSET', prefix .. 'delayed:wills', left[i], left[i + 1])
      redis.call('ZADD', prefix .. 'delayed', 0, left[i])
    end
  end
end

register('leave', {'allow-oom'}, function(prefix, node)
  if live(prefix, node) then
    attempt(prefix, NODE, node, pass_on_wills, prefix, node)
    remove(prefix, node, false)
    attempt(prefix, NODE, node, downtime.lose, prefix, node, false)
  end
  return {'ok'}
end)

register('tidy', {'allow-oom'}, function(prefix, most)
  local node = redis.call('SRANDMEMBER', prefix .. 'dead')
  if not node then
    return 0
  end
  local owned = prefix .. 'owned:' .. node
  local readable, found = attempt(prefix, NODE, node, redis.call, 'SPOP', owned, most)
  if not readable then
    redis.call('DEL', owned)
    found = {}
  end
  each(#found, function(i)
    local cid = found[i]:match('^(.*)%z[^%z]*$')
    local epoch, session = tonumber(found[i]:match('[^%z]*$')), session_of(prefix, cid)
    local waits = session and earlier.without(session.waits, node)
    if not session then
      return
    elseif session.incarnation == 0 then
      if earlier.living(prefix, waits) == '' then
        delete(prefix, cid)
      end
    elseif session.owner == node and (not has(session, FLAGS.PERSISTENT) or session.interval == '0') then
      end_session(session)
    elseif session.owner == node then
      session.owner, session.waits = '', waits
      earlier.has_died(session, session.epoch)
      expiry.begin(session)
      begin_grace(session)
    elseif waits ~= session.waits then
      session.waits = waits
      earlier.has_died(session, epoch)
      if session.owner == '' and waits == '' then
        held.resume(session)
      end
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[i]:match('^(.*)%z[^%z]*$'), reason)
  end)
  if redis.call('EXISTS', owned) == 0 then
    redis.call('SREM', prefix .. 'dead', node)
  end
  return #found
end)
