-- When sessions without a connection end. Each of them stands in a set of client ids: with a Session Expiry Interval of
-- its own in `ends:<second>`, which has the sessions that end then; else in `off:<second>`, with those whose
-- connections have ended in the minute from then on. The sorted sets `ends` and `off` have these seconds.

local call, in_parts, NOTHING = library.call, library.in_parts, library.NOTHING
local clock, now, NEVER = clock.clock, clock.now, clock.NEVER
local read = packed_sessions.read

local MINUTE = 60
local EXACT = 3600            -- seconds: longer intervals end with a minute, so that there are fewer sets

local expiry = {}

-- The index and the second of the set of a session; nil: it never ends by itself.
local function place_of(session)
  local interval = session.interval
  if interval == '' then
    return 'off', math.floor(session.since / MINUTE) * MINUTE
  elseif interval ~= NEVER then
    local second = session.since + tonumber(interval) + 1        -- the present second may end at once
    return 'ends', tonumber(interval) < EXACT and second or math.ceil(second / MINUTE) * MINUTE
  end
end

-- The set of a second, and what the call adds and removes there, at its end.
local function set_of(index, second)
  local sets = call.waiting or {}
  call.waiting = sets
  for i = 1, #sets do
    if sets[i].second == second and sets[i].name == index then
      return sets[i]
    end
  end
  sets[#sets + 1] = {name = index, second = second, added = {}, removed = {}}
  return sets[#sets]
end

local function remove(index, second, cid)
  local removed = set_of(index, second).removed
  removed[#removed + 1] = cid
end

local function add(index, second, cid)
  local added = set_of(index, second).added
  added[#added + 1] = cid
end

-- Change the sets. The call ends.
local function write(prefix)
  for _, set in ipairs(call.waiting or NOTHING) do
    local index = prefix .. set.name
    local key = index .. ':' .. set.second
    in_parts('SADD', key, set.added)
    in_parts('SREM', key, set.removed)
    local count = redis.call('SCARD', key)
    if count == 0 then
      redis.call('ZREM', index, set.second)
    elseif count == #set.added then
      redis.call('ZADD', index, set.second * 1000, set.second)
    end
  end
end

library.at_end[#library.at_end + 1] = write

-- The connection of a session has ended: count its time from now on.
function expiry.begin(session)
  session.since, session.changed = now(session.prefix), true
  local index, second = place_of(session)
  if index then
    add(index, second, session.cid)
  end
end

-- The session has a connection again, or ends.
function expiry.stop(session)
  local index, second = place_of(session)
  if index then
    remove(index, second, session.cid)
  end
end

-- The seconds of sets up to a time in milliseconds.
local function seconds_until(prefix, index, time)
  return redis.call('ZRANGEBYSCORE', prefix .. index, '-inf', time, 'LIMIT', 0, 100)
end

-- Take client ids whose Session Expiry Interval is over, about so many. Whether their sessions end is to be looked at.
function expiry.take(prefix, most)
  local found = {}
  for _, second in ipairs(seconds_until(prefix, 'ends', clock(prefix))) do
    local key = prefix .. 'ends:' .. second
    for _, cid in ipairs(redis.call('SPOP', key, most)) do
      found[#found + 1] = cid
    end
    if redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', prefix .. 'ends', second)
    end
    if #found >= most then
      break
    end
  end
  read(prefix, found)
  return found
end

-- Client ids of sessions without an interval whose connections may have ended by this second: set and id in turn, about
-- so many. They stay where they are.
function expiry.look(prefix, last, most)
  local found, cids = {}, {}
  for _, second in ipairs(seconds_until(prefix, 'off', last * 1000)) do
    for _, cid in ipairs(redis.call('SRANDMEMBER', prefix .. 'off:' .. second, most)) do
      cids[#cids + 1] = cid
      found[#found + 1], found[#found + 2] = tonumber(second), cid
    end
    if #cids >= most then
      break
    end
  end
  read(prefix, cids)
  return found
end

-- The second of the set in which a session has its place; nil: it has a connection, or none in this index.
function expiry.second_of(session, index)
  local its_index, second = place_of(session)
  return session.owner == '' and its_index == index and second or nil
end

-- A client id of a set of `off` is damaged: look at it later, so that others do not wait behind it.
function expiry.put_off(prefix, second, cid)
  remove('off', second, cid)
  add('off', math.floor(now(prefix) / MINUTE) * MINUTE, cid)
end

expiry.remove = remove
return expiry
