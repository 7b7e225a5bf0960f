-- The log of messages, and the results of analytics jobs.

local publish, register = library.publish, library.register
local refusal = damage.refusal
local live = nodes.live
local clock = clock.clock

-- Why an entry can't be added to the log of messages: 'again', the log has it; 'gap', the log lacks the entry before
-- it. nil if it can be added. An entry's id counts the bytes of all blocks up to its own.
local function log_obstacle(prefix, node, id, block)
  local logged = tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'logged') or 0)
  local total = tonumber(id:match('%d+$'))
  if total <= logged then
    return 'again'
  end
  if total - #block ~= logged then
    return 'gap'
  end
end

-- Add an entry. Returns an error if the log is damaged; then nothing has been written.
local function add_log_entry(prefix, node, id, block, oldest)
  local key = prefix .. 'analytics:log:' .. node
  local added = redis.pcall('XADD', key, 'MINID', '~', oldest, id, 'b', block)
  if type(added) == 'table' and added.err then
    return refusal(key, added.err)
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'logged', id:match('%d+$'))
end

register('logged', {}, function(prefix, node, entry_id, log_entry, oldest_entry)
  if not live(prefix, node) then
    return {'gone'}
  end
  local obstacle = log_obstacle(prefix, node, entry_id, log_entry)
  return not obstacle and add_log_entry(prefix, node, entry_id, log_entry, oldest_entry) or {obstacle or 'ok'}
end)

register('log_from', {'allow-oom'}, function(prefix, node, bytes)
  local key = prefix .. 'node:' .. node
  if live(prefix, node) and tonumber(redis.call('HGET', key, 'logged') or 0) < tonumber(bytes) then
    redis.call('HSET', key, 'logged', bytes)
  end
  return {'ok'}
end)

local REMEMBERED = 30 * 86400000   -- milliseconds that the record of a deleted log is kept

register('tidy_logs', {'allow-oom'}, function(prefix)
  for _, node in ipairs(redis.pcall('ZRANGEBYSCORE', prefix .. 'left', '-inf', string.format('%.0f', clock(prefix)))) do
    redis.call('DEL', prefix .. 'log:' .. node)
    redis.call('ZREM', prefix .. 'left', node)
  end
  local logs, time = prefix .. 'analytics:logs', redis.call('TIME')
  local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local known = redis.call('HGETALL', logs)
  for i = 1, #known, 2 do
    local node = known[i]
    local readable, log = pcall(cjson.decode, known[i + 1])
    local key = prefix .. 'analytics:log:' .. node
    if not readable or type(log) ~= 'table' or not log.seconds then
      redis.log(redis.LOG_WARNING, 'FlockMQ can not read the record of ' .. node .. ' in ' .. logs)
    elseif log.ended then
      if ms - log.ended > REMEMBERED then
        redis.call('HDEL', logs, node)
      end
    elseif not live(prefix, node) then
      redis.call('XTRIM', key, 'MINID', string.format('%.0f', ms - log.seconds * 1000))
      if redis.call('XLEN', key) == 0 then
        log.last = '0-0'
        if redis.call('EXISTS', key) == 1 then
          local info = redis.call('XINFO', 'STREAM', key)
          for j = 1, #info, 2 do
            if info[j] == 'last-generated-id' then
              log.last = info[j + 1]
            end
          end
        end
        log.ended = ms
        redis.call('HSET', logs, node, cjson.encode(log))
        redis.call('DEL', key)
      end
    end
  end
  return {'ok'}
end)

-- The logs with entries, as {node, bytes ever, bytes held}, and the readers with their records.
register('log_readers', {'no-writes'}, function(prefix)
  local logs, readers = {}, {}
  for _, node in ipairs(redis.call('HKEYS', prefix .. 'analytics:logs')) do
    local key = prefix .. 'analytics:log:' .. node
    local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    if oldest then
      local total = tonumber(newest[1]:match('%d+$'))
      logs[#logs + 1] = {node, total, total - tonumber(oldest[1]:match('%d+$')) + #oldest[2][2]}
    end
  end
  local known = redis.call('HGETALL', prefix .. 'analytics:jobs')
  for i = 1, #known, 2 do
    readers[#readers + 1] = {known[i], known[i + 1]}
  end
  return {logs, readers}
end)

register('result', {}, function(prefix, topic, payload)
  if payload == '' then
    redis.call('HDEL', prefix .. 'analytics:results', topic)
  else
    redis.call('HSET', prefix .. 'analytics:results', topic, payload)
  end
  publish(prefix .. 'all', cmsgpack.pack({'result', topic, payload}))
  return {'ok'}
end)

return {add_log_entry = add_log_entry, log_obstacle = log_obstacle}
