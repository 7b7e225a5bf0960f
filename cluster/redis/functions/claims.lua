-- Claims of sessions; kick and purge; and the ends of sessions and delayed wills that are due.

local call, register, notify = library.call, library.register, library.notify
local in_parts, NOTHING = library.in_parts, library.NOTHING
local attempt, each, note_damage, refusal = damage.attempt, damage.each, damage.note_damage, damage.refusal
local wrong_key, CLIENT, OWNED = damage.wrong_key, damage.CLIENT, damage.OWNED
local count_calls, live = nodes.count_calls, nodes.live
local clock, now = clock.clock, clock.now
local FLAGS, create, has = packed_sessions.FLAGS, packed_sessions.create, packed_sessions.has
local rare, read, session_of = packed_sessions.rare, packed_sessions.read, packed_sessions.of
local set_rare = packed_sessions.set_rare
local is_plain = packed_sessions.is_plain
local starts = redis_restarts.starts
local earlier, end_session = session_ends.earlier, session_ends.end_session
local forget, held = session_ends.forget, session_ends.held
local give_back = groups.give_back
local must_wait = returns.must_wait

local WAIT = 250              -- milliseconds until a message on its way back is looked at once more

local FLAP_SECONDS = 10       -- take-overs of a session within this time of each other count as a fight

-- The earlier connections of a session that the next one waits for, as `waits`; these as epochs and nodes in turn; and
-- the last epoch whose node is dead, or 0. Their nodes are told.
local function waits_for(session)
  local prefix, cid = session.prefix, session.cid
  local waits, waited, died = '', {}, 0
  for old, where in session.waits:gmatch('([^=,]+)=([^,]*),') do
    if live(prefix, where) then
      waits = waits .. old .. '=' .. where .. ','
      waited[#waited + 1] = tonumber(old)
      waited[#waited + 1] = where
      notify(prefix, where, 'taken', cid, tonumber(old))      -- repeated: the node may have had no link
    else
      died = math.max(died, tonumber(old))
    end
  end
  return waits, waited, died
end

-- A connection claims a session with an epoch. Appends to `owned` what the node has then. Returns the outcome.
local function claim(prefix, node, max_sessions, epoch, owned, cid, persistent, level, will, user, clean_start,
    interval, without_redis)
  local session = session_of(prefix, cid)
  local owner, last = session and session.owner or '', session and session.epoch
  if session and session.user ~= '' and session.user ~= user then
    return {'denied'}
  end
  if without_redis == 1 and owner ~= '' and owner ~= node and live(prefix, owner)
      and last > tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'epoch') or 0) then
    return {'taken'}                             -- after the node's last heartbeat with a link
  end
  -- A session without expiry ends with its connection, also if that is taken over.
  local present = session and clean_start == 0 and has(session, FLAGS.PERSISTENT)
    and not (owner ~= '' and session.interval == '0')
  if not session and persistent == 1 and redis.call('SCARD', prefix .. 'sessions') >= max_sessions then
    return {'full'}
  end
  local waits, waited, died, old_will = '', NOTHING, 0, ''
  if session and session.waits ~= '' then
    waits, waited, died = waits_for(session)
  end
  local seconds = now(prefix)
  local is_soon = session and math.abs(seconds - session.since) < FLAP_SECONDS
  local fights = is_soon and session.fights or 0
  if owner ~= '' then
    fights = is_soon and fights + 1 or 0
    if live(prefix, owner) then
      waits = waits .. last .. '=' .. owner .. ','
      waited = waited == NOTHING and {} or waited
      waited[#waited + 1] = last
      waited[#waited + 1] = owner
      notify(prefix, owner, 'taken', cid, last)
    else
      old_will = redis.call('HGET', prefix .. 'wills:' .. owner, last) or ''
      redis.call('HDEL', prefix .. 'wills:' .. owner, last)
      if present and wills.delay_of(old_will) > 0 then
        old_will = ''
      end
      died = last
    end
  end
  if died > 0 then
    attempt(prefix, CLIENT, cid, earlier.has_died, session, died)
  end
  if old_will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, last, old_will)
  end
  local delayed_epoch = session and rare(session, 'd')
  if delayed_epoch then
    -- The will of an ended connection waits for its delay: the client is back, or its session ends.
    local due = redis.call('ZSCORE', prefix .. 'delayed', delayed_epoch)
    local delayed = redis.call('HGET', prefix .. 'delayed:wills', delayed_epoch)
    redis.call('ZREM', prefix .. 'delayed', delayed_epoch)
    set_rare(session, 'd')
    if present and delayed and due then
      held.hold(session, tonumber(delayed_epoch), due)
    elseif delayed then
      redis.call('HDEL', prefix .. 'delayed:wills', delayed_epoch)
      old_will, last = delayed, tonumber(delayed_epoch)
      redis.call('HSET', prefix .. 'wills:' .. node, last, delayed)
    end
  end
  if present and owner == '' then
    expiry.stop(session)
    if has(session, FLAGS.GROUPED) then
      redis.call('ZREM', prefix .. 'grace', cid)
    end
  elseif not present then
    if session then
      session.epoch = epoch                      -- what it had of groups goes to others, not to its former connection
      end_session(session)
    end
    session = create(prefix, cid, epoch, epoch, persistent == 1 and FLAGS.PERSISTENT or 0)
    if persistent == 1 then
      redis.call('SADD', prefix .. 'sessions', cid)
    end
  end
  session.owner, session.epoch, session.level, session.waits = node, epoch, level, waits
  session.fights, session.since, session.user = fights, seconds, user
  session.interval = interval == '' and '' or string.format('%.0f', interval)
  session.changed = true
  owned[#owned + 1] = cid .. '\0' .. epoch
  if will ~= '' then
    redis.call('HSET', prefix .. 'wills:' .. node, epoch, will)
  end
  local is_all = present and not waited[1] and session.marks == 0 and is_plain(session, FLAGS.AWAITED)
  local stored = is_all and {session.head, session.sent, session.queue} or NOTHING
  local delaying = owner ~= '' and fights or 0   -- a connection that takes nothing over does not wait
  return {'ok', epoch, present and 1 or 0, session.incarnation, waited, delaying, old_will, last or 0, stored}
end

register('claims', {}, function(prefix, node, max_sessions, claims)
  if not live(prefix, node) then
    return {'gone'}
  end
  local key, reason = wrong_key(prefix, OWNED, node)
  if key then
    return refusal(key, reason)
  end
  local list, outcomes, owned = cmsgpack.unpack(claims), {}, {}
  read(prefix, list)
  local before = redis.call('INCRBY', prefix .. 'epoch', #list) - #list
  each(#list, function(i)
    outcomes[i] = claim(prefix, node, tonumber(max_sessions), before + i, owned, unpack(list[i]))
  end, function(i, reason)
    note_damage(prefix, CLIENT, list[i][1], reason)
    outcomes[i] = {'damaged', unpack(call.damaged, #call.damaged - 1)}
  end)
  if owned[1] then
    in_parts('SADD', prefix .. 'owned:' .. node, owned)
    count_calls(prefix, node, #owned)
  end
  return {'ok', outcomes}
end)

register('kick', {}, function(prefix, cid)
  local session = session_of(prefix, cid)
  if not session then
    return {'unknown'}
  end
  if session.owner == '' or not live(prefix, session.owner) then
    return {'offline'}
  end
  notify(prefix, session.owner, 'kick', cid)
  return {'sent', session.owner}
end)

register('purge', {}, function(prefix, cid)
  local readable, session = attempt(prefix, CLIENT, cid, session_of, prefix, cid)
  if not readable then
    forget(prefix, cid)
    return {'purged'}
  end
  if not session then
    return {'unknown'}
  end
  if session.owner ~= '' and live(prefix, session.owner) then
    session.interval, session.changed = '0', true
    -- If its node dies, has no link, or has closed the connection just before, the session ends with its claim.
    notify(prefix, session.owner, 'purge', cid)
    return {'sent', session.owner}
  end
  end_session(session)
  return {'purged'}
end)

register('limit', {}, function(prefix, node, cid, limits)
  local session = live(prefix, node) and session_of(prefix, cid)
  if session then
    set_rare(session, 'm', limits ~= '' and limits or nil)
  end
  return {'ok'}
end)

register('expire', {'allow-oom'}, function(prefix, node, seconds, most)
  local ended, time = 0, now(prefix)
  if starts.rests(prefix, clock(prefix)) then
    return 0
  end
  local last = time - tonumber(seconds)
  local found = expiry.look(prefix, last, tonumber(most))
  each(#found / 2, function(i)
    local second, cid = found[2 * i - 1], found[2 * i]
    local session = session_of(prefix, cid)
    if not session or expiry.second_of(session, 'off') ~= second then
      expiry.remove('off', second, cid)
    elseif session.since <= last then
      end_session(session)
      ended = ended + 1
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, found[2 * i], reason)
    expiry.put_off(prefix, found[2 * i - 1], found[2 * i])
  end)
  return ended
end)

register('due', {'allow-oom'}, function(prefix, node, most)
  if not live(prefix, node) then
    return {0, {}}
  end
  local time = string.format('%.0f', clock(prefix))
  local ended, handed, rests = 0, {}, starts.rests(prefix, tonumber(time))
  local expired = rests and {} or expiry.take(prefix, tonumber(most))
  each(#expired, function(i)
    local session = session_of(prefix, expired[i])
    local second = session and expiry.second_of(session, 'ends')
    if second and second * 1000 <= tonumber(time) then
      end_session(session)
      ended = ended + 1
    end
  end, function(i, reason)
    note_damage(prefix, CLIENT, expired[i], reason)
  end)
  for _, cid in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'grace', '-inf', time, 'LIMIT', 0, most)) do
    redis.call('ZREM', prefix .. 'grace', cid)
    attempt(prefix, CLIENT, cid, function()
      local session = session_of(prefix, cid)
      if session and session.owner == '' then
        give_back(session, true)
      end
    end)
  end
  local due = rests and {} or redis.call('ZRANGEBYSCORE', prefix .. 'delayed', '-inf', time, 'LIMIT', 0, most)
  for _, epoch in ipairs(due) do
    local will = redis.call('HGET', prefix .. 'delayed:wills', epoch)
    local waits = will and must_wait(prefix, will)
    if waits then
      redis.call('ZADD', prefix .. 'delayed', string.format('%.0f', tonumber(time) + WAIT), epoch)
    else
      redis.call('ZREM', prefix .. 'delayed', epoch)
      redis.call('HDEL', prefix .. 'delayed:wills', epoch)
    end
    if will and not waits then
      local cid = wills.client_of(will)
      attempt(prefix, CLIENT, cid, function()
        local session = session_of(prefix, cid)
        if session and rare(session, 'd') == epoch then
          set_rare(session, 'd')
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
