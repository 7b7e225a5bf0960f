-- Sessions without a connection, and their ends; wills that are held, and connections that are not released.

local attempt, CLIENT = damage.attempt, damage.CLIENT
local live = nodes.live
local change, mark = changes.change, changes.mark
local bytes_of = packed_sessions.bytes_of
local FLAGS, create, delete = packed_sessions.FLAGS, packed_sessions.create, packed_sessions.delete
local has, length_of, rare = packed_sessions.has, packed_sessions.length_of, packed_sessions.rare
local session_of, set_rare = packed_sessions.of, packed_sessions.set_rare

local session_ends = {
  give_back = nil,              -- set by groups.lua: messages in the queue of a session go back to their groups
  leave_groups = nil,           -- likewise: a session that ends leaves its groups
}

-- The delayed will of an ended connection is held while a later one has claimed the session: if its client is never
-- admitted, the will waits again. The will is in `delayed:wills`; the rare field `held` of the session has its epoch
-- and the time at which it is due. The node that admits the client settles it; the field stays until that connection
-- ends.
local held = {}

-- The epoch of the will that is held for a session, and when it is due; nil: none is.
function held.parts(session)
  local field = rare(session, 'held')
  if field then
    local epoch, due = field:match('^(%d+) (%S+)$')
    return tonumber(epoch), due
  end
end

-- Hold a will, unless that of a later connection is held. `due`: a text.
function held.hold(session, epoch, due)
  local of = held.parts(session)
  if of and of > epoch then
    redis.call('HDEL', session.prefix .. 'delayed:wills', string.format('%.0f', epoch))
  else
    held.drop(session, epoch)
    set_rare(session, 'held', string.format('%.0f ', epoch) .. due)
  end
end

-- A connection before which the will of the session was held may have been admitted: drop the will. `epoch`: of that
-- connection; nil: the session ends.
function held.drop(session, epoch)
  local of = held.parts(session)
  if of and of < (epoch or math.huge) then
    set_rare(session, 'held')
    redis.call('HDEL', session.prefix .. 'delayed:wills', string.format('%.0f', of))
  end
end

-- The session has no connection any more, and none was admitted since the will is held: it waits again.
function held.resume(session)
  local epoch, due = held.parts(session)
  if epoch then
    local id = string.format('%.0f', epoch)
    set_rare(session, 'held')
    redis.call('ZADD', session.prefix .. 'delayed', due, id)
    set_rare(session, 'd', id)
  end
end

-- The session ends: its will is due; that which is held, too, unless a later connection may have been admitted.
local function end_wills(session)
  local epoch = held.parts(session)
  local is_last = session.owner == ''
  for old in session.waits:gmatch('([^=,]+)=') do
    is_last = is_last and epoch and tonumber(old) <= epoch
  end
  if epoch and is_last then
    held.resume(session)
  elseif epoch then
    held.drop(session)
  end
  local delayed = rare(session, 'd')
  if delayed then
    redis.call('ZADD', session.prefix .. 'delayed', 0, delayed)
  end
end

-- Remove all keys of a session, also of a damaged one.
local function forget(prefix, cid)
  local fine, session = pcall(session_of, prefix, cid)
  if fine and session then
    pcall(end_wills, session)
    local tenant = tenants.of(cid)
    if tenant then
      tenants.add(tenant, -bytes_of(session))
    end
    if session.owner == '' and has(session, FLAGS.PERSISTENT) then
      expiry.stop(session)
    end
  end
  delete(prefix, cid)
  redis.call('SREM', prefix .. 'sessions', cid)
end

-- Earlier connections of a session that their nodes have not released. Its field `waits` has their epochs and nodes.
local earlier = {}

-- Those of `waits` whose nodes fit. In the same form.
function earlier.at(waits, fits)
  local found = ''
  for old, where in waits:gmatch('([^=,]+)=([^,]*),') do
    if fits(where) then
      found = found .. old .. '=' .. where .. ','
    end
  end
  return found
end

-- Those of `waits` whose nodes live: they may still be served.
function earlier.living(prefix, waits)
  return earlier.at(waits, function(node)
    return live(prefix, node)
  end)
end

-- Those of `waits` at other nodes.
function earlier.without(waits, node)
  return earlier.at(waits, function(other)
    return other ~= node
  end)
end

-- Whether one of `waits` may have sent messages, and Redis has not noted which: its node lives, or has just died.
function earlier.may_have_sent(prefix, waits)
  for where in waits:gmatch('=([^,]*),') do
    if live(prefix, where) or redis.call('SISMEMBER', prefix .. 'dead', where) == 1 then
      return true
    end
  end
  return false
end

-- The node of a connection is dead: it may have admitted the client, and have sent every message in the queue.
function earlier.has_died(session, epoch)
  session.sent, session.changed = session.head + length_of(session), true
  held.drop(session, epoch)
end

-- End a session, and with it what is damaged of it. Other nodes know the subscriptions of a persistent one, so its end
-- is a change. Nodes may still have earlier connections of its client: the next connection has to wait for them, so
-- their epochs stay, in a session that nothing fits. `outbox`: as for `give_back`.
local function end_session(session, outbox)
  local prefix, cid, is_persistent = session.prefix, session.cid, has(session, FLAGS.PERSISTENT)
  if is_persistent then
    attempt(prefix, CLIENT, cid, session_ends.give_back, session, true, outbox)
    attempt(prefix, CLIENT, cid, session_ends.leave_groups, prefix, cid)
    redis.call('ZREM', prefix .. 'grace', cid)
  end
  forget(prefix, cid)
  local waits = earlier.living(prefix, session.waits)
  if waits ~= '' then
    create(prefix, cid, session.epoch, 0, 0).waits = waits       -- no incarnation is 0
  end
  if is_persistent then
    return change(prefix, '', cmsgpack.pack({{'ended', cid, session.incarnation}, mark()}))
  end
  return 0
end

session_ends.earlier = earlier
session_ends.end_session = end_session
session_ends.forget = forget
session_ends.held = held
return session_ends
