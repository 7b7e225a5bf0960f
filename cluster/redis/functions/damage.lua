-- Damaged keys: a step that fails on one is noted and skipped, and the others are applied. Redis does not undo what a
-- function did before an error, so no error may leave a function after its first write. What all depends on is checked
-- before that. Each step for a client or a group is one of its own: if it fails, as its keys have a wrong type or
-- content, it is noted in `damaged`, and the others are applied.

local call = library.call

local CLIENT = {kind = 'client', 's:', 'string', 'q:', 'list', 'st:', 'hash', 'in:', 'hash', 'subs:', 'hash',
  'rare:', 'hash'}

local OWNED = {kind = 'node', 'owned:', 'set'}

local GROUP = {kind = 'group', 'g:', 'hash', 'gs:', 'set', 'gw:', 'list', 'gq:', 'zset', 'gm:', 'hash', 'gr:', 'zset',
  'go:', 'hash', 'gk:', 'hash', 'gv:', 'hash'}
local COMMON = {'sessions', 'set', 'off', 'zset', 'ends', 'zset', 'grace', 'zset', 'left', 'zset', 'delayed', 'zset',
  'delayed:wills', 'hash', 'clock', 'hash', 'epoch', 'string', 'change', 'string', 'changes', 'stream',
  'shared', 'hash', 'groups', 'hash', 'nodes', 'hash', 'queued:tenants', 'hash'}

-- The first key with a wrong type, and a sentence on it; or nil. `keys`: names and types in turn; `of`: what follows
-- each.
local function wrong_key(prefix, keys, of)
  for i = 1, #keys, 2 do
    local key = prefix .. keys[i] .. of
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= keys[i + 1] then
      return key, 'WRONGTYPE its type is ' .. found .. ' instead of ' .. keys[i + 1]
    end
  end
end

-- The error for a key without which nothing of a call can be applied. Nothing has been written.
local function refusal(key, reason)
  return redis.error_reply('DAMAGED ' .. key .. ': ' .. reason)
end

-- A step for a client or a group has failed, with this error.
local function note_damage(prefix, kinds, name, reason)
  reason = type(reason) == 'table' and reason.err or tostring(reason)
  local key, sentence = wrong_key(prefix, kinds, name)
  if not key then
    key, sentence = wrong_key(prefix, COMMON, '')
  end
  key, reason = key or prefix .. kinds[1] .. name, sentence or reason
  for _, value in ipairs({kinds.kind, name, key, reason}) do
    call.damaged[#call.damaged + 1] = value
  end
  redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. reason)
end

-- Call `step` for a client or a group. Returns whether it has not failed, and its result.
local function attempt(prefix, kinds, name, step, ...)
  local fine, result = pcall(step, ...)
  if not fine then
    note_damage(prefix, kinds, name, result)
  end
  return fine, result
end

local function run(step, job)
  while job.at < job.count do
    job.at = job.at + 1
    step(job.at, job)
  end
end

-- Call `step` with the numbers from 1 to `count`, and with the table `job`. If it fails, call `failed` with the number,
-- the error and `job`, and go on with the next one. (One pcall for all costs less than one for each. In calls for each
-- message `step` is no closure: to make one takes as long as a command of Redis.)
local function each(count, step, failed, job)
  job = job or {}
  job.at, job.count = 0, count
  while job.at < count do
    local fine, reason = pcall(run, step, job)
    if not fine then
      failed(job.at, reason, job)
    end
  end
end

-- For `each`: an item of `job.list`, which begins with a client id, has failed.
local function client_failed(i, reason, job)
  note_damage(job.prefix, CLIENT, job.list[i][1], reason)
end

return {
  CLIENT = CLIENT, GROUP = GROUP, OWNED = OWNED, attempt = attempt, client_failed = client_failed, each = each,
  note_damage = note_damage, refusal = refusal, wrong_key = wrong_key,
}
