-- The acknowledgements of clients.

local call, register, NOTHING = library.call, library.register, library.NOTHING
local client_failed, each = damage.client_failed, damage.each
local note_damage, CLIENT = damage.note_damage, damage.CLIENT
local drop_plain, read, read_each = packed_sessions.drop_plain, packed_sessions.read, packed_sessions.read_each
local session_of = packed_sessions.of
local count_calls, live = nodes.count_calls, nodes.live
local new_outbox, send_outbox = subscribers.new_outbox, subscribers.send_outbox
local dispatch_all = assignments.dispatch_all
local settle = transfers.settle

-- Entries of a session are done, others received. `done`: numbers; `received`: numbers and bytes in turn; `size`: bytes
-- of those that are done, '' = not known.
local function finish(prefix, cid, incarnation, done, received, size)
  local session = session_of(prefix, cid)
  if not session or session.incarnation ~= incarnation then
    return
  end
  for j = 1, #received, 2 do
    queues.receive(session, received[j], received[j + 1])
  end
  local first = session.head
  local head, waiting = first, {}
  for j = 1, #done do
    local number = done[j]
    if number == head then
      head = head + 1
    elseif number > head then
      waiting[#waiting + 1] = number
    end
  end
  for j = 1, #waiting do
    queues.finish(session, waiting[j])
  end
  if size == '' or #done ~= head - first then
    size = nil                                   -- not known, or also of others
  end
  queues.drop_done(session, head, size)
end

-- Acknowledgements of a client in order.
local function acknowledge_in_order(i, job)
  local cid, incarnation, first, count, size = unpack(job.list, 5 * i - 4, 5 * i)
  if not drop_plain(cid, incarnation, first, count) then
    local done = {}
    for number = first, first + count - 1 do
      done[#done + 1] = number
    end
    finish(job.prefix, cid, incarnation, done, NOTHING, size)
  end
end

local function in_order_failed(i, reason, job)
  note_damage(job.prefix, CLIENT, job.list[5 * i - 4], reason)
end

-- Other acknowledgements of a client.
local function acknowledge(i, job)
  finish(job.prefix, unpack(job.list[i]))
end

-- Apply acknowledgements of clients, and what the node settles with groups; both unpacked, or nil. Returns the groups
-- whose messages have room now.
local function apply(prefix, node, acks, settled, outbox)
  if acks then
    local in_order, others = unpack(acks)
    read_each(prefix, in_order, 5)
    read(prefix, others)
    each(#in_order / 5, acknowledge_in_order, in_order_failed, {prefix = prefix, list = in_order})
    each(#others, acknowledge, client_failed, {prefix = prefix, list = others})
  end
  return settled and settle(prefix, node, settled, outbox) or NOTHING
end

register('acks', {'allow-oom'}, function(prefix, node, acks, settled)
  if not live(prefix, node) then
    return {'gone'}
  end
  count_calls(prefix, node, 1)
  local outbox = new_outbox()
  local waiting = apply(prefix, node, cmsgpack.unpack(acks), settled ~= '' and cmsgpack.unpack(settled), outbox)
  dispatch_all(prefix, waiting, outbox)
  dispatch_all(prefix, call.woken, outbox)
  local assignments, totals, given = send_outbox(prefix, node, outbox)
  return {'ok', assignments, totals, given, call.damaged}
end)

return {apply = apply}
