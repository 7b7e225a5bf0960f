-- The log of messages, and the results of analytics jobs.

-- args: prefix, node, id of an entry of the log of messages, the entry, the oldest entry to keep. For entries of turns
-- without a commit.
register('flockmq_logged', function(args)
  local prefix, node = args[1], args[2]
  if not live(prefix, node) then
    return {'gone'}
  end
  local obstacle = log_obstacle(prefix, node, args[3], args[4])
  return not obstacle and log_entry(prefix, node, args[3], args[4], args[5]) or {obstacle or 'ok'}
end)

-- args: prefix, node, bytes of its log of messages that Redis had confirmed. If Redis has lost some of them, as when a
-- replica takes over, the log continues after the gap, and readers see the gap.
register({function_name = 'flockmq_log_from', flags = {'allow-oom'}, callback = function(args)
  local key = args[1] .. 'node:' .. args[2]
  if live(args[1], args[2]) and tonumber(redis.call('HGET', key, 'logged') or 0) < tonumber(args[3]) then
    redis.call('HSET', key, 'logged', args[3])
  end
  return 'ok'
end})

local REMEMBERED = 30 * 86400000   -- milliseconds that the record of a deleted log is kept

-- args: prefix. Deletes the logs of batches of nodes that left a minute ago. Trims the logs of messages of nodes that
-- have left by age, and deletes the empty ones.
register({function_name = 'flockmq_tidy_logs', flags = {'allow-oom'}, callback = function(args)
  local prefix = args[1]
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
  return 'ok'
end})

-- args: prefix, topic name below $SYS/analytics/, payload (empty = remove the result). All nodes publish it.
register('flockmq_result', function(args)
  local prefix, topic, payload = args[1], args[2], args[3]
  if payload == '' then
    redis.call('HDEL', prefix .. 'analytics:results', topic)
  else
    redis.call('HSET', prefix .. 'analytics:results', topic, payload)
  end
  publish(prefix .. 'all', cmsgpack.pack({'result', topic, payload}))
  return 'ok'
end)
