-- The acknowledgements of clients.

local call, register = library.call, library.register
local client_failed, each = damage.client_failed, damage.each
local count_call, live = nodes.count_call, nodes.live
local new_outbox, send_outbox = subscribers.new_outbox, subscribers.send_outbox
local dispatch_all = assignments.dispatch_all
local settle = transfers.settle

-- Acknowledgements of a client.
local function acknowledge(i, job)
  local prefix = job.prefix
  local cid, incarnation, done, received, size = unpack(job.list[i])
  local key, states, tenant = prefix .. 's:' .. cid, prefix .. 'st:' .. cid, tenants.of(cid)
  local state = redis.call('HMGET', key, 'h', 'b', 'z', 'x', 'r')
  if not state[1] or tonumber(state[4]) ~= incarnation then
    return
  end
  local queue = prefix .. 'q:' .. cid
  local head, bytes, marks = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
  local noted = queues.done(key, marks)
  local acked, before = noted, bytes
  for j = 1, #received, 2 do
    local number, entry_size = received[j], received[j + 1]
    if number >= head and redis.call('HSETNX', states, number, 'r') == 1 then
      marks = marks + 1
      if entry_size > 0 and redis.pcall('LSET', queue, number - head, queues.NO_MESSAGE).ok then
        bytes = bytes - entry_size
      end
    end
  end
  local first, waiting = head, nil
  for j = 1, #done do
    local number = done[j]
    if number == head then
      head = head + 1
    elseif number > head then
      waiting = waiting or {}
      waiting[#waiting + 1] = number
    end
  end
  if waiting then
    for j = 1, #waiting do
      local freed, more_marks, more_acked = queues.finish(queue, states, waiting[j], waiting[j] - first)
      bytes, marks, acked = bytes - freed, marks + more_marks, acked + more_acked
    end
  end
  if size == '' or #done ~= head - first then
    size = nil                                   -- not known, or also of others
  end
  if marks > 0 then
    for number = first, head - 1 do
      if acked > 0 and redis.call('HGET', states, number) == 'd' then
        acked, size = acked - 1, nil             -- it was done before
      end
      marks = marks - redis.call('HDEL', states, number)
    end
  end
  if tenant then
    tenants.add(tenant, bytes - before)
  end
  queues.drop_done(prefix, tenant, cid, first, head, bytes, marks, acked, noted, size, state[5])
end

register('acks', {'allow-oom'}, function(prefix, node, acks, settled)
  if not live(prefix, node) then
    return {'gone'}
  end
  count_call(prefix, node)
  local list, outbox = cmsgpack.unpack(acks), new_outbox()
  each(#list, acknowledge, client_failed, {prefix = prefix, list = list})
  if settled ~= '' then
    settle(prefix, node, cmsgpack.unpack(settled), outbox)
  end
  dispatch_all(prefix, call.woken, outbox)
  local assignments, totals, given = send_outbox(prefix, node, outbox)
  return {'ok', assignments, totals, given, call.damaged}
end)
