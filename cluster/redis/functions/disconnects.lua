-- Releases the session of a connection that has ended: its will waits, its expiry begins, or it ends.

local notify = library.notify
local clock = clock.clock
local begin_expiry, end_session, held = session_ends.begin_expiry, session_ends.end_session, session_ends.held
local begin_grace = groups.begin_grace

-- The connection of an epoch has ended, and its will has a delay: keep the will until it is due, whoever publishes it
-- then. It is held if another connection has claimed the session by now, and due at once if the session has ended.
local function delay_will(prefix, node, cid, epoch, delay, state)
  local id = string.format('%.0f', epoch)
  local will = redis.call('HGET', prefix .. 'wills:' .. node, id)
  redis.call('HDEL', prefix .. 'wills:' .. node, id)
  if not will then
    return
  end
  redis.call('HSET', prefix .. 'delayed:wills', id, will)
  local due = string.format('%.0f', clock(prefix) + delay * 1000)
  if not state[2] or state[6] == '0' or epoch < tonumber(state[6]) then
    redis.call('ZADD', prefix .. 'delayed', 0, id)
  elseif tonumber(state[2]) == epoch then
    redis.call('ZADD', prefix .. 'delayed', due, id)
    redis.call('HSET', prefix .. 's:' .. cid, 'd', id)
  else
    held.hold(prefix, cid, epoch, due)
  end
end

-- A node has closed a connection: the session is offline, has ended, or is claimed by a connection that waits for this.
-- `sent`: messages with lower numbers may have been sent; '' = the client was never admitted. `interval`: its Session
-- Expiry Interval in seconds, '' = as configured. `delay`: of its will in seconds, '' = no will waits. `outbox`: what
-- nodes have to be sent.
local function release(prefix, node, outbox, cid, epoch, sent, interval, delay)
  redis.call('SREM', prefix .. 'owned:' .. node, cid .. '\0' .. epoch)
  local key = prefix .. 's:' .. cid
  local state = redis.call('HMGET', key, 'o', 'e', 'p', 'w', 'n', 'x', 'i', 'held', 'g')
  if delay ~= '' then
    delay_will(prefix, node, cid, epoch, delay, state)
  end
  if not state[2] then
    return
  end
  local of_this_life, was_admitted = epoch >= tonumber(state[6]), sent ~= ''
  local is_held = delay ~= '' or state[8]        -- or may be since `delay_will`
  if is_held and was_admitted and of_this_life then
    held.drop(prefix, cid, epoch)
  end
  local first_unsent = math.max(of_this_life and was_admitted and sent or 0, tonumber(state[5]))
  if tonumber(state[2]) == epoch then
    local seconds = state[7] or ''
    if was_admitted and seconds ~= '0' then      -- [5: 3.14.2.2.2]; or an operator has ended the session
      seconds = interval == '' and '' or string.format('%.0f', interval)
    end
    redis.call('HSET', key, 'o', '', 'n', first_unsent, 'i', seconds)
    if is_held and state[4] == '' then
      held.resume(prefix, cid)
    end
    if state[3] == '1' and seconds ~= '0' then
      begin_expiry(prefix, cid, seconds)
      if (state[9] or '') ~= '' then
        begin_grace(prefix, cid, outbox)
      end
    else
      end_session(prefix, '', cid, state[6], state[3], outbox)
    end
    return
  end
  local waits = ''
  for old, where in state[4]:gmatch('([^=,]+)=([^,]*),') do
    if tonumber(old) ~= epoch then
      waits = waits .. old .. '=' .. where .. ','
    end
  end
  if waits == '' and state[6] == '0' then
    redis.call('DEL', key)                       -- its session has ended before
    return
  end
  redis.call('HSET', key, 'w', waits, 'n', first_unsent)
  if state[1] ~= '' then
    notify(prefix, state[1], 'released', cid, epoch)
  elseif waits == '' then
    held.resume(prefix, cid)                     -- the connection that waited for this has ended before
    begin_grace(prefix, cid, outbox)
  end
end

local function release_one(i, job)
  release(job.prefix, job.node, job.outbox, unpack(job.list[i]))
end

return {release_one = release_one}
