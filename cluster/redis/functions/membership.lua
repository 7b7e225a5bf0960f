-- Nodes: they join, send heartbeats, leave, and are declared dead.

-- args: prefix, node, its layout, fields of the node's hash. A new cluster gets this layout. Returns {number of the
-- last change, clock, milliseconds without a node that it counts}, or {'layout', theirs} if the cluster has another.
register('flockmq_join', function(args)
  local prefix, node = args[1], args[2]
  redis.call('SETNX', prefix .. 'layout', args[3])
  local layout = redis.call('GET', prefix .. 'layout')
  if layout ~= args[3] then
    return {'layout', layout}
  end
  local off = outage.begin(prefix, redis.call('HKEYS', prefix .. 'nodes'))
  redis.call('HSET', prefix .. 'nodes', node, 1)
  if known then
    known[prefix .. node] = true
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', 0, 'state', 'joining', 'starts', starts.count(prefix),
    unpack(args, 4))
  return {tonumber(redis.call('GET', prefix .. 'change') or 0), clock(prefix), off}
end)

-- args: prefix, node. The node has read the state; from now on others wait for it.
-- Returns {number of the change, node, seq, ...}.
register('flockmq_ready', function(args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'state', 'ready')
  local result = {change(prefix, node, cmsgpack.pack({{'ready', node}, mark()}))}
  for _, other in ipairs(redis.call('HKEYS', prefix .. 'nodes')) do
    result[#result + 1] = other
    result[#result + 1] = tonumber(redis.call('HGET', prefix .. 'node:' .. other, 'seq') or 0)
    result[#result + 1] = redis.call('HGET', prefix .. 'node:' .. other, 'state') or ''
  end
  return result
end)

-- args: prefix, node, fields. Returns {seq, last change, node, heartbeats, ...}, or {'gone'}. With the field `elapsed`,
-- the milliseconds since the node's last heartbeat: {seq, last change, clock, 1 = something is due, node, ...}.
register({function_name = 'flockmq_beat', flags = {'allow-oom'}, callback = function(args)
  local prefix, node = args[1], args[2]
  local seq = live(prefix, node) and seq_of(prefix, node)
  if not seq then
    return {'gone'}
  end
  redis.call('HINCRBY', prefix .. 'nodes', node, 1)
  local process = starts.count(prefix)
  if known and #args > 2 then
    known[prefix .. node] = true   -- not with the first one over a new link, which reads what the node has missed
  end
  if #args > 2 then
    local epoch = redis.pcall('GET', prefix .. 'epoch')
    redis.call('HSET', prefix .. 'node:' .. node, 'epoch', type(epoch) == 'string' and epoch or 0, 'starts', process,
      unpack(args, 3))
  end
  local result = {seq, tonumber(redis.call('GET', prefix .. 'change') or 0)}
  for i = 3, #args, 2 do
    if args[i] == 'elapsed' then
      local time = advance_clock(prefix, tonumber(args[i + 1]), node)
      local due = 0
      starts.begin_rest(prefix, time)
      for _, name in ipairs(starts.rests(prefix, time) and {'grace'} or {'delayed', 'expiring', 'grace'}) do
        if #redis.call('ZRANGEBYSCORE', prefix .. name, '-inf', string.format('%.0f', time), 'LIMIT', 0, 1) > 0 then
          due = 1
        end
      end
      result[3], result[4] = time, due
    end
  end
  for _, value in ipairs(redis.call('HGETALL', prefix .. 'nodes')) do
    result[#result + 1] = value
  end
  return result
end})

-- args: prefix, node, number of the process of Redis that the node is up to date with, 0 = not known. The node has a
-- new link: it lives, but is not up to date. It brings that number back, since Redis may have lost the heartbeats with
-- it: else it would seem that the node has missed processes. Returns {seq, last change, calls counted}, or {'gone'}.
register({function_name = 'flockmq_resume', flags = {'allow-oom'}, callback = function(args)
  local prefix, node, process = args[1], args[2], tonumber(args[3])
  local seq = live(prefix, node) and seq_of(prefix, node)
  if not seq then
    return {'gone'}
  end
  redis.call('HINCRBY', prefix .. 'nodes', node, 1)
  starts.count(prefix)
  local key = prefix .. 'node:' .. node
  local state = redis.call('HMGET', key, 'calls', 'starts')
  if process > (tonumber(state[2]) or 0) then
    redis.call('HSET', key, 'starts', process)
  end
  return {seq, tonumber(redis.call('GET', prefix .. 'change') or 0), tonumber(state[1]) or 0}
end})

-- args: prefix, node, milliseconds since the node's last heartbeat or call of this function. Returns the clock.
register({function_name = 'flockmq_clock', flags = {'allow-oom'}, callback = function(args)
  return advance_clock(args[1], tonumber(args[3]), args[2])
end})

local NODE = {kind = 'node', 'node:', 'hash', 'routes:', 'hash', 'wills:', 'hash', 'owned:', 'set', 'log:', 'stream',
  'gl:', 'set', 'gn:', 'set', 'queued:', 'hash'}

-- The bytes in the queues that a node has itself, which are not in Redis. `reported`: from `first` on tenants and their
-- bytes in turn; those of others are 0.
local function report_queued(prefix, node, reported, first)
  local key, bytes = prefix .. 'queued:' .. node, {}
  for _, tenant in ipairs(redis.call('HKEYS', key)) do
    bytes[tenant] = 0
  end
  for i = first, #reported, 2 do
    bytes[reported[i]] = tonumber(reported[i + 1])
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

-- args: prefix, node, then tenants, as their prefixes, and the bytes in their queues that the node has itself, in turn.
-- Returns for each tenant the bytes in its other queues: those in Redis and at other nodes. Nothing: the node is dead.
register({function_name = 'flockmq_queued', flags = {'allow-oom'}, callback = function(args)
  local prefix, result = args[1], {}
  if not live(prefix, args[2]) then
    return {}
  end
  report_queued(prefix, args[2], args, 3)
  tenants.write(prefix)
  for i = 3, #args, 2 do
    local total = tenants.total(prefix, args[i])
    if total == 0 then
      redis.pcall('HDEL', prefix .. 'queued:tenants', args[i])
    end
    result[#result + 1] = total - tonumber(args[i + 1])
  end
  return result
end})

-- A node ends, and with it what is damaged of it.
local function remove(prefix, node)
  redis.call('HDEL', prefix .. 'nodes', node)
  attempt(prefix, NODE, node, end_node_leases, prefix, node)
  attempt(prefix, NODE, node, report_queued, prefix, node, {}, 1)
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

-- args: prefix, node, dead node, its heartbeats as last seen. Declares it dead if their count is still the same.
-- Returns {epoch, will, ...}: the wills that the caller publishes. The will of a client that is at another node by now
-- is handed to that node.
register({function_name = 'flockmq_bury', flags = {'allow-oom'}, callback = function(args)
  local prefix, node, dead = args[1], args[2], args[3]
  if not live(prefix, node) or redis.call('HGET', prefix .. 'nodes', dead) ~= args[4] then
    return {}
  end
  local result = {}
  local readable, wills = attempt(prefix, NODE, dead, redis.call, 'HGETALL', prefix .. 'wills:' .. dead)
  wills = readable and wills or {}
  each(#wills / 2, function(i)
    local epoch, will = wills[2 * i - 1], wills[2 * i]
    local cid = client_of(will)
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e', 'p', 'x', 'i')
    local owner, delay = state[1], delay_of(will)
    if delay > 0 and state[2] and state[3] == '1' and tonumber(epoch) >= tonumber(state[4])
        and not (state[2] == epoch and state[5] == '0') then
      -- The session outlives its connection: the will waits, or is held if another connection has claimed the session.
      local seconds = (state[5] or '') == '' and delay or math.min(delay, tonumber(state[5]))
      local due = string.format('%.0f', clock(prefix) + seconds * 1000)
      redis.call('HSET', prefix .. 'delayed:wills', epoch, will)
      if state[2] == epoch then
        redis.call('ZADD', prefix .. 'delayed', due, epoch)
        redis.call('HSET', prefix .. 's:' .. cid, 'd', epoch)
      else
        held.hold(prefix, cid, tonumber(epoch), due)
      end
    elseif owner and owner ~= '' and owner ~= dead and owner ~= node and live(prefix, owner) then
      redis.call('HSET', prefix .. 'wills:' .. owner, epoch, will)
      tell(prefix, owner, 'adopt', tonumber(epoch), will)
    else
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
      result[#result + 1] = tonumber(epoch)
      result[#result + 1] = will
    end
  end, function(i, reason)
    local epoch, will = wills[2 * i - 1], wills[2 * i]
    note_damage(prefix, CLIENT, client_of(will), reason)
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
    result[#result + 1] = tonumber(epoch)
    result[#result + 1] = will
  end)
  remove(prefix, dead)
  attempt(prefix, NODE, dead, outage.lose, prefix, dead, true)
  return result
end})

-- The wills that a node has to publish are due for any node: it leaves, and may have got them from a dead one just
-- before.
local function pass_on_wills(prefix, node)
  local wills = redis.call('HGETALL', prefix .. 'wills:' .. node)
  for i = 1, #wills, 2 do
    redis.call('HSET', prefix .. 'delayed:wills', wills[i], wills[i + 1])
    redis.call('ZADD', prefix .. 'delayed', 0, wills[i])
  end
end

-- args: prefix, node. The node leaves; it has committed everything that it has received.
register({function_name = 'flockmq_leave', flags = {'allow-oom'}, callback = function(args)
  local prefix, node = args[1], args[2]
  if live(prefix, node) then
    attempt(prefix, NODE, node, pass_on_wills, prefix, node)
    remove(prefix, node)
    attempt(prefix, NODE, node, outage.lose, prefix, node, false)
  end
  return 'ok'
end})

-- args: prefix, max. Marks sessions of dead nodes as offline, up to that many. Returns how many.
register({function_name = 'flockmq_tidy', flags = {'allow-oom'}, callback = function(args)
  local prefix = args[1]
  local node = redis.call('SRANDMEMBER', prefix .. 'dead')
  if not node then
    return 0
  end
  local owned = prefix .. 'owned:' .. node
  local readable, found = attempt(prefix, NODE, node, redis.call, 'SPOP', owned, args[2])
  if not readable then
    redis.call('DEL', owned)
    found = {}
  end
  each(#found, function(i)
    local cid = found[i]:match('^(.*)%z[^%z]*$')
    local key, epoch = prefix .. 's:' .. cid, tonumber(found[i]:match('[^%z]*$'))
    local state = redis.call('HMGET', key, 'o', 'p', 'i', 'x', 'w', 'e')
    local waits = earlier.without(state[5] or '', node)
    if state[4] == '0' then
      if earlier.living(prefix, waits) == '' then
        redis.call('DEL', key)
      end
    elseif state[1] == node and (state[2] ~= '1' or state[3] == '0') then
      end_session(prefix, '', cid, state[4], state[2])
    elseif state[1] == node then
      redis.call('HSET', key, 'o', '', 'w', waits)
      earlier.has_died(prefix, cid, tonumber(state[6]))
      begin_expiry(prefix, cid, state[3] or '')
      begin_grace(prefix, cid)
    elseif state[4] and waits ~= state[5] then
      redis.call('HSET', key, 'w', waits)
      earlier.has_died(prefix, cid, epoch)
      if state[1] == '' and waits == '' then
        held.resume(prefix, cid)
      end
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[i]:match('^(.*)%z[^%z]*$'), reason)
  end)
  if redis.call('EXISTS', owned) == 0 then
    redis.call('SREM', prefix .. 'dead', node)
  end
  return #found
end})
