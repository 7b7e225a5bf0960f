-- Claims of sessions; kick and purge; and the ends of sessions and delayed wills that are due.

local register, notify = library.register, library.notify
local attempt, each, note_damage, refusal = damage.attempt, damage.each, damage.note_damage, damage.refusal
local CLIENT = damage.CLIENT
local count_call, live = nodes.count_call, nodes.live
local clock, now, LATE = clock.clock, clock.now, clock.LATE
local starts = redis_restarts.starts
local earlier, end_session = session_ends.earlier, session_ends.end_session
local forget, held = session_ends.forget, session_ends.held
local begin_grace, give_back = groups.begin_grace, groups.give_back

local FLAP_SECONDS = 10       -- take-overs of a session within this time of each other count as a fight

register('claim', {}, function(prefix, node, cid, persistent, level, will, max_sessions,
    user, clean_start, interval, without_redis)
  if not live(prefix, node) then
    return {'gone'}
  end
  local key = prefix .. 's:' .. cid
  local state = redis.pcall('HMGET', key, 'o', 'e', 'x', 'p', 'w', 'f', 't', 'u', 'i', 'd')
  if state.err then
    return refusal(key, state.err)
  end
  local owner, last, incarnation = state[1], state[2], state[3]
  if (state[8] or '') ~= '' and state[8] ~= user then
    return {'denied'}
  end
  if without_redis == '1' and (owner or '') ~= '' and owner ~= node and live(prefix, owner)
      and tonumber(last) > tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'epoch') or 0) then
    return {'taken'}                             -- after the node's last heartbeat with a link
  end
  -- A session without expiry ends with its connection, also if that is taken over.
  local present = last and clean_start == '0' and state[4] == '1' and not (owner ~= '' and state[9] == '0')
  if not last and persistent == '1' and redis.call('ZCARD', prefix .. 'sessions') >= tonumber(max_sessions) then
    return {'full'}
  end
  local epoch = redis.call('INCR', prefix .. 'epoch')
  count_call(prefix, node)
  local waits, waited, old_will, died = '', {}, '', 0   -- the last epoch whose node is dead
  for old, where in (state[5] or ''):gmatch('([^=,]+)=([^,]*),') do
    if live(prefix, where) then
      waits = waits .. old .. '=' .. where .. ','
      waited[#waited + 1] = tonumber(old)
      waited[#waited + 1] = where
      notify(prefix, where, 'taken', cid, tonumber(old))      -- repeated: the node may have had no link
    else
      died = math.max(died, tonumber(old))
    end
  end
  local fights, seconds = tonumber(state[6] or 0), now(prefix)
  if last and owner ~= '' then
    if math.abs(seconds - tonumber(state[7])) < FLAP_SECONDS then fights = fights + 1 else fights = 0 end
    if live(prefix, owner) then
      waits = waits .. last .. '=' .. owner .. ','
      waited[#waited + 1] = tonumber(last)
      waited[#waited + 1] = owner
      notify(prefix, owner, 'taken', cid, tonumber(last))
    else
      old_will = redis.call('HGET', prefix .. 'wills:' .. owner, last) or ''
      redis.call('HDEL', prefix .. 'wills:' .. owner, last)
      if present and wills.delay_of(old_will) > 0 then
        old_will = ''
      end
      died = tonumber(last)
    end
  end
  if died > 0 then
    attempt(prefix, CLIENT, cid, earlier.has_died, prefix, cid, died)
  end
  if old_will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, last, old_will)
  end
  if (state[10] or '') ~= '' then
    -- The will of an ended connection waits for its delay: the client is back, or its session ends.
    local due = redis.call('ZSCORE', prefix .. 'delayed', state[10])
    local delayed = redis.call('HGET', prefix .. 'delayed:wills', state[10])
    redis.call('ZREM', prefix .. 'delayed', state[10])
    redis.call('HDEL', key, 'd')
    if present and delayed and due then
      held.hold(prefix, cid, tonumber(state[10]), due)
    elseif delayed then
      redis.call('HDEL', prefix .. 'delayed:wills', state[10])
      old_will, last = delayed, state[10]
      redis.call('HSET', prefix .. 'wills:' .. node, last, delayed)
    end
  end
  redis.call('ZREM', prefix .. 'expiring', cid)
  redis.call('ZREM', prefix .. 'grace', cid)
  if present then
    redis.call('HSET', key, 'o', node, 'e', epoch, 'l', level, 'w', waits, 'f', fights, 't', seconds, 'u', user,
      'i', interval)
  else
    if last then
      redis.call('HSET', key, 'e', epoch)          -- what it had of groups goes to others, not to its former connection
      end_session(prefix, '', cid, incarnation, state[4])
    end
    incarnation = epoch
    redis.call('HSET', key, 'o', node, 'e', epoch, 'x', epoch, 'p', persistent, 'l', level, 'h', 1,
      'b', 0, 'n', 1, 'z', 0, 'w', waits, 'f', fights, 't', seconds, 'u', user,
      'i', interval)
  end
  if persistent == '1' and not present then
    redis.call('ZADD', prefix .. 'sessions', interval == '' and seconds or LATE, cid)
  end
  redis.call('SADD', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  if will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
  end
  return {'ok', epoch, present and 1 or 0, tonumber(incarnation), waited, fights, old_will, tonumber(last or 0)}
end)

register('kick', {}, function(prefix, cid)
  local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'e')
  if not state[2] then
    return {'unknown'}
  end
  if state[1] == '' or not live(prefix, state[1]) then
    return {'offline'}
  end
  notify(prefix, state[1], 'kick', cid)
  return {'sent', state[1]}
end)

register('purge', {}, function(prefix, cid)
  local readable, state = attempt(prefix, CLIENT, cid, redis.call, 'HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p', 'w')
  if not readable then
    forget(prefix, cid)
    return {'purged'}
  end
  if not state[2] then
    return {'unknown'}
  end
  if state[1] ~= '' and live(prefix, state[1]) then
    redis.call('HSET', prefix .. 's:' .. cid, 'i', 0)
    -- If its node dies, has no link, or has closed the connection just before, the session ends with its claim.
    notify(prefix, state[1], 'purge', cid)
    return {'sent', state[1]}
  end
  end_session(prefix, '', cid, state[2], state[3])
  return {'purged'}
end)

register('limit', {}, function(prefix, node, cid, limits)
  local key = prefix .. 's:' .. cid
  if live(prefix, node) and redis.call('HGET', key, 'x') then
    if limits == '' then
      redis.call('HDEL', key, 'm')
    else
      redis.call('HSET', key, 'm', limits)
    end
  end
  return {'ok'}
end)

register('expire', {'allow-oom'}, function(prefix, node, seconds, most)
  local ended, time = 0, now(prefix)
  if starts.rests(prefix, clock(prefix)) then
    return 0
  end
  local found = redis.call('ZRANGEBYSCORE', prefix .. 'sessions', '-inf', time - tonumber(seconds), 'LIMIT', 0,
    most)
  each(#found, function(i)
    local cid = found[i]
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p', 'i', 'e')
    if not state[2] then
      redis.call('ZREM', prefix .. 'sessions', cid)
    elseif (state[4] or '') ~= '' then
      redis.call('ZADD', prefix .. 'sessions', LATE, cid)
    elseif state[1] == '' then
      end_session(prefix, '', cid, state[2], state[3])
      ended = ended + 1
    else
      redis.call('ZADD', prefix .. 'sessions', time, cid)      -- its time offline begins now, when the end is noticed
      if not live(prefix, state[1]) then
        redis.call('HSET', prefix .. 's:' .. cid, 'o', '')
        earlier.has_died(prefix, cid, tonumber(state[5]))
        begin_grace(prefix, cid)
      end
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[i], reason)
    redis.call('ZADD', prefix .. 'sessions', time, found[i])       -- others wait behind it
  end)
  return ended
end)

register('due', {'allow-oom'}, function(prefix, node, most)
  if not live(prefix, node) then
    return {0, {}}
  end
  local time = string.format('%.0f', clock(prefix))
  local ended, handed, rests = 0, {}, starts.rests(prefix, tonumber(time))
  local expired = rests and {} or redis.call('ZRANGEBYSCORE', prefix .. 'expiring', '-inf', time, 'LIMIT', 0, most)
  each(#expired, function(i)
    local cid = expired[i]
    redis.call('ZREM', prefix .. 'expiring', cid)
    local state = redis.call('HMGET', prefix .. 's:' .. cid, 'o', 'x', 'p')
    if state[2] and state[1] == '' then
      end_session(prefix, '', cid, state[2], state[3])
      ended = ended + 1
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, expired[i], reason)
  end)
  for _, cid in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'grace', '-inf', time, 'LIMIT', 0, most)) do
    redis.call('ZREM', prefix .. 'grace', cid)
    attempt(prefix, CLIENT, cid, function()
      if redis.call('HGET', prefix .. 's:' .. cid, 'o') == '' then
        give_back(prefix, cid, true)
      end
    end)
  end
  local due = rests and {} or redis.call('ZRANGEBYSCORE', prefix .. 'delayed', '-inf', time, 'LIMIT', 0, most)
  for _, epoch in ipairs(due) do
    local will = redis.call('HGET', prefix .. 'delayed:wills', epoch)
    redis.call('ZREM', prefix .. 'delayed', epoch)
    redis.call('HDEL', prefix .. 'delayed:wills', epoch)
    if will then
      local cid = wills.client_of(will)
      attempt(prefix, CLIENT, cid, function()
        if redis.call('HGET', prefix .. 's:' .. cid, 'd') == epoch then
          redis.call('HDEL', prefix .. 's:' .. cid, 'd')
        end
      end)
      -- Without its delay: if this node dies now, the will is still due, and waits for nothing.
      will = wills.without_delay(will)
      redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
      handed[#handed + 1] = tonumber(epoch)
      handed[#handed + 1] = will
    end
  end
  return {ended, handed}
end)
