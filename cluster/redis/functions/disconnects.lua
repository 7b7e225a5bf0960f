-- Releases the session of a connection that has ended: its will waits, its expiry begins, or it ends.

local in_parts, notify = library.in_parts, library.notify
local attempt, client_failed, each, OWNED = damage.attempt, damage.client_failed, damage.each, damage.OWNED
local clock = clock.clock
local FLAGS, delete, has = packed_sessions.FLAGS, packed_sessions.delete, packed_sessions.has
local session_of, set_rare = packed_sessions.of, packed_sessions.set_rare
local end_session, held = session_ends.end_session, session_ends.held
local begin_grace = groups.begin_grace

-- The connection of an epoch has ended, and its will has a delay: keep the will until it is due, whoever publishes it
-- then. It is held if another connection has claimed the session by now, and due at once if the session has ended.
local function delay_will(prefix, node, session, epoch, delay)
  local id = string.format('%.0f', epoch)
  local will = redis.call('HGET', prefix .. 'wills:' .. node, id)
  redis.call('HDEL', prefix .. 'wills:' .. node, id)
  if not will then
    return
  end
  redis.call('HSET', prefix .. 'delayed:wills', id, will)
  local due = string.format('%.0f', clock(prefix) + delay * 1000)
  if not session or session.incarnation == 0 or epoch < session.incarnation then
    redis.call('ZADD', prefix .. 'delayed', 0, id)
  elseif session.epoch == epoch then
    redis.call('ZADD', prefix .. 'delayed', due, id)
    set_rare(session, 'd', id)
  else
    held.hold(session, epoch, due)
  end
end

-- The last connection of a session has ended. `interval`: its Session Expiry Interval now, as the session has it.
local function go_offline(session, interval, outbox)
  session.owner, session.interval, session.changed = '', interval, true
  if session.waits == '' then
    held.resume(session)
  end
  if has(session, FLAGS.PERSISTENT) and interval ~= '0' then
    expiry.begin(session)
    begin_grace(session, outbox)
  else
    end_session(session, outbox)
  end
end

-- A node has closed a connection: the session is offline, has ended, or is claimed by a connection that waits for this.
-- `sent`: messages with lower numbers may have been sent; '' = the client was never admitted. `interval`: its Session
-- Expiry Interval in seconds, '' = as configured. `delay`: of its will in seconds, '' = no will waits. `overtaken`: 1 =
-- it has ended because another connection has claimed the session. `outbox`: what nodes have to be sent.
local function release(prefix, node, outbox, cid, epoch, sent, interval, delay, overtaken)
  local session = session_of(prefix, cid)
  if delay ~= '' then
    delay_will(prefix, node, session, epoch, delay)
  end
  if not session then
    return
  end
  local of_this_life, was_admitted = epoch >= session.incarnation, sent ~= ''
  if was_admitted and of_this_life then
    held.drop(session, epoch)
  end
  session.sent, session.changed = math.max(of_this_life and was_admitted and sent or 0, session.sent), true
  if session.epoch == epoch then
    local own = session.interval
    if was_admitted and own ~= '0' then          -- [5: 3.14.2.2.2]; or an operator has ended the session
      own = interval == '' and '' or string.format('%.0f', interval)
    end
    go_offline(session, own, outbox)
    return
  end
  if was_admitted and overtaken == 0 then
    session.fights = math.max(0, session.fights - 1)   -- it had ended when the next one claimed the session: no fight
  end
  local waits = ''
  for old, where in session.waits:gmatch('([^=,]+)=([^,]*),') do
    if tonumber(old) ~= epoch then
      waits = waits .. old .. '=' .. where .. ','
    end
  end
  if waits == '' and session.incarnation == 0 then
    delete(prefix, cid)                          -- its session has ended before
    return
  end
  session.waits = waits
  if session.owner ~= '' then
    notify(prefix, session.owner, 'released', cid, epoch)
  elseif waits == '' then
    held.resume(session)                         -- the connection that waited for this has ended before
    begin_grace(session, outbox)
  end
end

local function release_one(i, job)
  release(job.prefix, job.node, job.outbox, unpack(job.list[i]))
  job.released[#job.released + 1] = job.list[i][1] .. '\0' .. job.list[i][2]
end

-- Release connections of a node. `releases`: of the block.
local function release_all(prefix, node, releases, outbox)
  local released = {}
  each(#releases, release_one, client_failed,
    {prefix = prefix, node = node, list = releases, outbox = outbox, released = released})
  attempt(prefix, OWNED, node, in_parts, 'SREM', prefix .. 'owned:' .. node, released)
end

return {release_all = release_all}
