-- The time in which no node lived: it counts by the wall clock of Redis.

local call = library.call
local advance_clock, announce_clock, wall = clock.advance_clock, clock.announce_clock, clock.wall
local CLOCK_AHEAD = clock.CLOCK_AHEAD
local starts = redis_restarts.starts

-- The time in which no node lived counts, by the wall clock of Redis: nothing better is known. A node that joins may
-- find nodes that have ended without leaving. Then the fields `off` and `of` of the clock have the time since the last
-- heartbeat, and those nodes. When all of them have been declared dead, it counts. If one sends a heartbeat, the time
-- that this node has measured counts instead: a step of the wall clock must end nothing while nodes live.
local downtime = {MOST = 31622400000}                 -- milliseconds that count: a year

-- A node joins. `others`: the nodes that have not left. Returns the milliseconds that count at once.
function downtime.begin(prefix, others)
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'w', 'off', 'of')
  local passed = state[1] and math.min(math.max(wall() - tonumber(state[2]), 0), downtime.MOST) or 0
  if #others == 0 then
    advance_clock(prefix, downtime.MOST)
    return passed
  end
  if passed > CLOCK_AHEAD then
    local nodes = state[4] or ' '
    for _, node in ipairs(others) do
      if not nodes:find(' ' .. node .. ' ', 1, true) then
        nodes = nodes .. node .. ' '
      end
    end
    redis.call('HSET', prefix .. 'clock', 'off', string.format('%.0f', passed + tonumber(state[3] or 0)), 'of', nodes,
      'w', string.format('%.0f', wall()))
    call.time = nil
  end
  return 0
end

-- A node has ended. `is_dead`: it was declared dead; else it has left, so it has lived.
function downtime.lose(prefix, node, is_dead)
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'off', 'of')
  if not state[2] or not state[3]:find(' ' .. node .. ' ', 1, true) then
    return
  end
  local first, last = state[3]:find(' ' .. node .. ' ', 1, true)
  local nodes = state[3]:sub(1, first) .. state[3]:sub(last + 1)
  if is_dead and nodes ~= ' ' then
    redis.call('HSET', prefix .. 'clock', 'of', nodes)
    return
  end
  redis.call('HDEL', prefix .. 'clock', 'off', 'of')
  if is_dead then
    local passed = math.min(tonumber(state[2]), downtime.MOST)
    local time = tonumber(state[1]) + passed
    redis.call('HSET', prefix .. 'clock', 't', string.format('%.0f', time))
    call.time = nil
    announce_clock(prefix, time)
    -- What this process waits for is no part of it.
    starts.rest_ends[prefix] = starts.rest_ends[prefix] and starts.rest_ends[prefix] + passed
    redis_restarts.postpone(prefix, passed)
  end
end

return downtime
