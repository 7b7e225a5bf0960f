-- Publications that touch several shards and take effect once: each has a number. A shard that has given what a
-- publication gives to it knows the number until no node will give it again.

local register, in_parts = library.register, library.in_parts
local FLAGS, session_of, set_flag = packed_sessions.FLAGS, packed_sessions.of, packed_sessions.set_flag

local AWAITED = 'q'           -- the first byte of the number of a message that awaits PUBREL
local OFFER = 'g'             -- ... of a message of a group of another shard, for one session

local once = {is_offer_needed = nil}             -- set by returns.lua

-- Add messages for groups to others; each group is there once.
local function add_shares(shares, more)
  local at = {}
  for i = 1, #shares, 2 do
    at[shares[i]] = shares[i + 1]
  end
  for i = 1, #more, 2 do
    local places = at[more[i]]
    if not places then
      places = {}
      at[more[i]] = places
      shares[#shares + 1], shares[#shares + 2] = more[i], places
    end
    for _, place in ipairs(more[i + 1]) do
      places[#places + 1] = place
    end
  end
end

-- A session gets a message of a group of another shard. Returns false if it has ended.
local function note_grouped(prefix, push)
  local session = session_of(prefix, push[1])
  if not session or session.incarnation ~= push[2] then
    return false
  end
  set_flag(session, FLAGS.GROUPED, true)
  return true
end

-- Note the numbers of a block, and leave out all that an earlier block has given. `numbered`: number and {places of
-- pushes, shares, delayed messages, places of records} in turn. Returns the numbers that were known.
function once.give(prefix, node, numbered, pushes, shares, later, records)
  local known, fresh, skipped = {}, {}, {}
  for i = 1, #numbered, 2 do
    local number, part = numbered[i], numbered[i + 1]
    if number:sub(1, 1) == OFFER and not note_grouped(prefix, pushes[part[1][1]]) then
      pushes[part[1][1]][2] = -1                 -- the number stands for an entry of a queue: there is none
    elseif redis.call('HSETNX', prefix .. 'once', number, node) == 0 then
      known[#known + 1] = number
      for _, place in ipairs(part[1]) do
        pushes[place][2] = -1                    -- no session has this incarnation
      end
      for _, place in ipairs(part[4]) do
        skipped[place] = true
      end
    else
      fresh[#fresh + 1] = number
      add_shares(shares, part[2])
      for j = 1, #part[3] do
        later[#later + 1] = part[3][j]
      end
    end
  end
  in_parts('SADD', prefix .. 'once:' .. node, fresh)
  local kept = records
  if next(skipped) then
    kept = {}
    for i, record in ipairs(records) do
      kept[#kept + 1] = not skipped[i] and record or nil
    end
  end
  return known, kept
end

-- No node will give these any more. `owner`: the node that has given them, or 'orphans'.
function once.forget(prefix, owner, numbers)
  in_parts('HDEL', prefix .. 'once', numbers)
  in_parts('SREM', prefix .. 'once:' .. owner, numbers)
  if owner ~= 'orphans' then                       -- it has repeated publications of a dead node
    in_parts('SREM', prefix .. 'once:orphans', numbers)
  end
end

-- A node has ended. If it was declared dead, others may give its publications again.
function once.node_ends(prefix, node, is_dead)
  local key = prefix .. 'once:' .. node
  if is_dead then
    redis.call('SUNIONSTORE', prefix .. 'once:orphans', prefix .. 'once:orphans', key)
    redis.call('DEL', key)
  else
    once.forget(prefix, node, redis.call('SMEMBERS', key))
  end
end

-- Whether the record that ends with a publication is still in this shard, so that a node may repeat the publication.
local function is_needed(prefix, number)
  local kind = number:sub(1, 1)
  if kind == OFFER then
    return once.is_offer_needed(prefix, number)
  elseif kind == AWAITED then
    local head = string.char(wills.NUMBERED) .. number:sub(2, 9)
    for _, message in ipairs(redis.call('HVALS', prefix .. 'in:' .. number:sub(10))) do
      if message:sub(1, 9) == head then
        return true
      end
    end
    return false
  end
  local will = struct.unpack('<I8', number, 3)
  local epoch = string.format('%.0f', will)
  if redis.call('HEXISTS', prefix .. 'delayed:wills', epoch) == 1
      or redis.call('HEXISTS', prefix .. 'later:messages', string.format('%016.0f', will)) == 1 then
    return true
  end
  for _, node in ipairs(redis.call('HKEYS', prefix .. 'nodes')) do
    if redis.call('HEXISTS', prefix .. 'wills:' .. node, epoch) == 1 then
      return true
    end
  end
  return false
end

register('orphans', {'no-writes'}, function(prefix, most)
  return redis.call('SRANDMEMBER', prefix .. 'once:orphans', most)
end)

register('needed', {'no-writes'}, function(prefix, numbers)
  local found = {}
  for i, number in ipairs(cmsgpack.unpack(numbers)) do
    found[i] = is_needed(prefix, number) and 1 or 0
  end
  return found
end)

register('forget', {'allow-oom'}, function(prefix, numbers)
  once.forget(prefix, 'orphans', cmsgpack.unpack(numbers))
  return {'ok'}
end)

once.OFFER = OFFER
return once
