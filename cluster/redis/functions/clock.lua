-- The clock of the cluster, in milliseconds: steps of Redis' wall clock do not move it.

local call, publish = library.call, library.publish

-- The wall clock of Redis in milliseconds.
local function wall()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local CLOCK_AHEAD = 3000      -- milliseconds: how far the clock runs ahead of the last heartbeat
local NEVER = '4294967295'    -- a Session Expiry Interval

-- The clock of the cluster, in milliseconds. It is that of the last heartbeat, plus the time since then by the wall
-- clock, within bounds: steps of the wall clock and a promoted replica don't move it.
local function clock(prefix)
  if not call.time then
    local state = redis.call('HMGET', prefix .. 'clock', 't', 'w')
    call.time = state[1]
      and tonumber(state[1]) + math.min(math.max(wall() - tonumber(state[2]), 0), CLOCK_AHEAD) or wall()
  end
  return call.time
end

-- The same in seconds.
local function now(prefix)
  return math.floor(clock(prefix) / 1000)
end

-- The clock has made a step: all nodes set theirs, before they read a deadline that was made with it.
local function announce_clock(prefix, time)
  publish(prefix .. 'all', cmsgpack.pack({'clock', time}))
end

-- Set the clock forward by the time since the last heartbeat, at most by `most` milliseconds. `node`: of the heartbeat.
local function advance_clock(prefix, most, node)
  local time = wall()
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'w', 'off', 'of')
  local value, has_stepped = time, false
  if state[1] then
    local passed = math.max(time - tonumber(state[2]), 0)
    if state[3] and node and state[4]:find(' ' .. node .. ' ', 1, true) then
      passed = passed + tonumber(state[3])
      redis.call('HDEL', prefix .. 'clock', 'off', 'of')
      has_stepped = true
    end
    value = tonumber(state[1]) + math.min(passed, most)
  end
  redis.call('HSET', prefix .. 'clock', 't', string.format('%.0f', value), 'w', string.format('%.0f', time))
  call.time = nil
  if has_stepped then
    announce_clock(prefix, value)
  end
  return value
end

return {
  CLOCK_AHEAD = CLOCK_AHEAD, NEVER = NEVER, advance_clock = advance_clock,
  announce_clock = announce_clock, clock = clock, now = now, wall = wall,
}
