-- Sessions without a connection, and their ends; wills that are held, and connections that are not released.

local attempt, CLIENT = damage.attempt, damage.CLIENT
local live = nodes.live
local clock, now, LATE, NEVER = clock.clock, clock.now, clock.LATE, clock.NEVER
local change, mark = changes.change, changes.mark

local session_ends = {
  give_back = nil,              -- set by groups.lua: messages in the queue of a session go back to their groups
  leave_groups = nil,           -- likewise: a session that ends leaves its groups
}

-- Begin to count the time of a session without a connection. `interval`: in seconds; '' = as the nodes are configured.
local function begin_expiry(prefix, cid, interval)
  redis.call('ZADD', prefix .. 'sessions', interval == '' and now(prefix) or LATE, cid)
  if interval ~= '' and interval ~= NEVER then
    redis.call('ZADD', prefix .. 'expiring', string.format('%.0f', clock(prefix) + tonumber(interval) * 1000), cid)
  end
end

-- The delayed will of an ended connection is held while a later one has claimed the session: if its client is never
-- admitted, the will waits again. The will is in `delayed:wills`; the field `held` of the session has its epoch and the
-- time at which it is due. The node that admits the client settles it; the field stays until that connection ends.
local held = {}

-- The epoch and the time in a field; nil: no will is held.
function held.parts(field)
  local epoch, due = (type(field) == 'string' and field or ''):match('^(%d+) (%S+)$')
  return tonumber(epoch), due
end

-- Hold a will, unless that of a later connection is held. `due`: a text.
function held.hold(prefix, cid, epoch, due)
  local of = held.parts(redis.call('HGET', prefix .. 's:' .. cid, 'held'))
  if of and of > epoch then
    redis.call('HDEL', prefix .. 'delayed:wills', string.format('%.0f', epoch))
  else
    held.drop(prefix, cid, epoch)
    redis.call('HSET', prefix .. 's:' .. cid, 'held', string.format('%.0f ', epoch) .. due)
  end
end

-- A connection before which the will of the session was held may have been admitted: drop the will. `epoch`: of that
-- connection; nil: the session ends.
function held.drop(prefix, cid, epoch)
  local key = prefix .. 's:' .. cid
  local of = held.parts(redis.pcall('HGET', key, 'held'))
  if of and of < (epoch or math.huge) then
    redis.call('HDEL', key, 'held')
    redis.call('HDEL', prefix .. 'delayed:wills', string.format('%.0f', of))
  end
end

-- The session ends: the will is due, unless a later connection may have been admitted.
function held.finish(prefix, cid)
  local key = prefix .. 's:' .. cid
  local state = redis.pcall('HMGET', key, 'held', 'o', 'w')
  local epoch = held.parts(state[1])
  if not epoch then
    return
  end
  local is_last = state[2] == ''
  for old in (state[3] or ''):gmatch('([^=,]+)=') do
    is_last = is_last and tonumber(old) <= epoch
  end
  if is_last then
    held.resume(prefix, cid)
  else
    held.drop(prefix, cid)
  end
end

-- The session has no connection any more, and none was admitted since the will is held: it waits again.
function held.resume(prefix, cid)
  local key = prefix .. 's:' .. cid
  local epoch, due = held.parts(redis.call('HGET', key, 'held'))
  if epoch then
    local id = string.format('%.0f', epoch)
    redis.call('HDEL', key, 'held')
    redis.call('ZADD', prefix .. 'delayed', due, id)
    redis.call('HSET', key, 'd', id)
  end
end

local function forget(prefix, cid)
  held.finish(prefix, cid)
  local delayed = redis.pcall('HGET', prefix .. 's:' .. cid, 'd')
  if type(delayed) == 'string' and delayed ~= '' then
    redis.call('ZADD', prefix .. 'delayed', 0, delayed)    -- the session ends: its will is due
  end
  redis.call('ZREM', prefix .. 'expiring', cid)
  local tenant = tenants.of(cid)
  if tenant then
    tenants.add(tenant, -(tonumber(redis.pcall('HGET', prefix .. 's:' .. cid, 'b')) or 0))
  end
  redis.call('DEL', prefix .. 's:' .. cid, prefix .. 'q:' .. cid, prefix .. 'st:' .. cid, prefix .. 'in:' .. cid,
    prefix .. 'subs:' .. cid)
  redis.call('ZREM', prefix .. 'sessions', cid)
end

-- Earlier connections of a session that their nodes have not released. Its field `w` has their epochs and nodes.
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
function earlier.has_died(prefix, cid, epoch)
  local key = prefix .. 's:' .. cid
  redis.call('HSET', key, 'n', tonumber(redis.call('HGET', key, 'h')) + redis.call('LLEN', prefix .. 'q:' .. cid))
  held.drop(prefix, cid, epoch)
end

-- A session has ended while nodes still had earlier connections of its client. The next connection has to wait for
-- them, so their epochs stay, in a session that nothing fits: its incarnation is 0.
local function keep_waits(prefix, cid, epoch, waits)
  redis.call('HSET', prefix .. 's:' .. cid, 'o', '', 'e', epoch, 'x', 0, 'p', 0, 'h', 1, 'b', 0, 'n', 1, 'z', 0,
    'w', waits)
end

-- End a session, and with it what is damaged of it. Other nodes know the subscriptions of a persistent one, so its end
-- is a change. `outbox`: as for `give_back`.
local function end_session(prefix, origin, cid, incarnation, persistent, outbox)
  if persistent == '1' then
    attempt(prefix, CLIENT, cid, session_ends.give_back, prefix, cid, true, outbox)
    attempt(prefix, CLIENT, cid, session_ends.leave_groups, prefix, cid)
    redis.call('ZREM', prefix .. 'grace', cid)
  end
  local left = redis.pcall('HMGET', prefix .. 's:' .. cid, 'e', 'w')
  forget(prefix, cid)
  if (left[2] or '') ~= '' then
    local waits = earlier.living(prefix, left[2])
    if waits ~= '' then
      keep_waits(prefix, cid, left[1], waits)
    end
  end
  if persistent == '1' then
    return change(prefix, origin, cmsgpack.pack({{'ended', cid, tonumber(incarnation)}, mark()}))
  end
  return 0
end

session_ends.begin_expiry = begin_expiry
session_ends.earlier = earlier
session_ends.end_session = end_session
session_ends.forget = forget
session_ends.held = held
return session_ends
