"""The rule of `policies/lease_table.py` as a script for Redis, so that one round trip renews and grants atomically.

Time is Redis's own. A number that has to survive is a whole number below 2**53, which Lua keeps exactly. What a server
run knows is not trusted by the next run (its memory may be older than what was granted), so a changed run id recovers
like an empty memory does: for one lease nothing new is granted, and whoever holds something says so.

KEYS: the living gateways (hash: id -> "epoch seq expires_ms"), the table's own state (hash), then a hash for each
resource (gateway -> "epoch held in_use wanted limit expires_ms served at_ms").
ARGV: channel, gateway, seq, lease_ms, reserve parts, quanta per lease, now_ms and run id ('' : Redis's own), then for
each resource its name, held, in_use, wanted, limit, is_urgent (1 or 0).
Answer: is_stale, epoch, num_gateways, is_recovering, number of contended resources, their places from 0, allowed units
of each resource, then the unused ones.
"""

RENEW = """
local channel, me, seq, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local reserve_parts, quantum = tonumber(ARGV[5]), math.floor(lease / tonumber(ARGV[6]))
local now, run = tonumber(ARGV[7]), ARGV[8]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
if run == '' then
  local info = redis.pcall('INFO', 'server')
  run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or 'unknown'
end

local function numbers(text)
  local found = {}
  for number in string.gmatch(text, '%S+') do found[#found + 1] = tonumber(number) end
  return found
end
local function text(values)
  for place, value in ipairs(values) do values[place] = string.format('%.0f', value) end
  return table.concat(values, ' ')
end

local living, num_living, num_silent = {}, 0, 0
local records = redis.call('HGETALL', KEYS[1])
for place = 1, #records, 2 do
  local record = numbers(records[place + 1])
  if record[3] > now + lease then
    record[3] = now + lease
    redis.call('HSET', KEYS[1], records[place], text({record[1], record[2], record[3]}))
  end
  if record[3] <= now then
    redis.call('HDEL', KEYS[1], records[place])
    num_silent = num_silent + 1
  else
    living[records[place]] = record
    num_living = num_living + 1
  end
end
local state = redis.call('HMGET', KEYS[2], 'run', 'recovered_ms', 'last_epoch')
local recovered, last_epoch = tonumber(state[2]), tonumber(state[3]) or 0
if recovered and recovered > now + lease then
  recovered = now + lease
  redis.call('HSET', KEYS[2], 'recovered_ms', string.format('%.0f', recovered))
end
if not recovered or state[1] ~= run or (num_silent > 0 and num_living == 0) then
  recovered = now + lease
  redis.call('HSET', KEYS[2], 'run', run, 'recovered_ms', string.format('%.0f', recovered))
end

local mine = living[me]
if mine and seq <= mine[2] then return {1, mine[1], num_living, 0, 0} end
local is_recovering = now < recovered
local is_fenced = not mine and not is_recovering
if not mine then
  last_epoch = math.max(last_epoch + 1, now)
  redis.call('HSET', KEYS[2], 'last_epoch', string.format('%.0f', last_epoch))
  mine = {last_epoch, 0, 0}
  living[me] = mine
  num_living = num_living + 1
end
mine[2], mine[3] = seq, now + lease
redis.call('HSET', KEYS[1], me, text({mine[1], mine[2], mine[3]}))

-- Entries are {epoch, held, in_use, wanted, limit, expires_ms, served, at_ms}.
local HELD, IN_USE, WANTED, LIMIT, EXPIRES, SERVED, AT = 2, 3, 4, 5, 6, 7, 8
local function served(entry)
  local num_halvings = math.max(0, math.min(math.floor(now / lease) - math.floor(entry[AT] / lease), 32))
  return math.floor(entry[SERVED] / 2 ^ num_halvings) + entry[HELD] * math.max(0, now - entry[AT])
end

local function others_of(key)
  local others, before, gone = {}, nil, {}
  local found = redis.call('HGETALL', key)
  for place = 1, #found, 2 do
    local name, entry = found[place], numbers(found[place + 1])
    local record = living[name]
    if not record or record[1] ~= entry[1] or entry[EXPIRES] <= now then
      gone[#gone + 1] = name
    elseif name == me then
      before = entry
    else
      others[name] = entry
    end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  return others, before
end

local function fair_shares(limit, wants)
  local sorted, left, remaining, level, odd = {}, 0, math.max(0, limit), 0, 0
  for _, want in pairs(wants) do
    left = left + 1
    sorted[left] = want[1]
  end
  table.sort(sorted)
  for _, wanted in ipairs(sorted) do
    if wanted * left > remaining then
      level = math.floor(remaining / left)
      odd = remaining % left
      break
    end
    remaining = remaining - wanted
    left = left - 1
    level = wanted
  end
  local shares, short = {}, {}
  for name, want in pairs(wants) do
    shares[name] = math.min(want[1], level)
    if want[1] > level then short[#short + 1] = {want[3] - (want[2] > level and quantum or 0), name} end
  end
  table.sort(short, function(one, other)
    if one[1] ~= other[1] then return one[1] < other[1] end
    return one[2] < other[2]
  end)
  for place = 1, math.min(odd, #short) do
    shares[short[place][2]] = shares[short[place][2]] + 1
  end
  return shares
end

local function grant(entry, others, is_urgent)
  local wants, num_wants, limit, held_by_others, shared = {}, 0, entry[LIMIT], 0, 0
  local function look(name, one)
    limit = math.min(limit, one[LIMIT])
    if one[WANTED] > 0 then
      wants[name] = {one[WANTED], one[HELD], served(one)}
      num_wants = num_wants + 1
    end
  end
  look(me, entry)
  for name, other in pairs(others) do
    look(name, other)
    held_by_others = held_by_others + other[HELD]
  end
  local whole = limit
  local num_idle = is_urgent and 0 or num_living - num_wants
  limit = limit - num_idle * math.floor(limit / (reserve_parts * num_living))
  local shares = fair_shares(limit, wants)
  local share = shares[me] or 0
  if entry[WANTED] > 0 then
    for _, units in pairs(shares) do shared = shared + units end
    local spare = math.max(0, limit - shared)
    share = share + math.min(math.floor((entry[WANTED] + 1) / 2), math.floor(spare / 2))
  end
  local allowed = math.min(share, math.max(entry[HELD], limit - held_by_others))
  allowed = math.max(0, math.min(allowed, whole - held_by_others))
  if allowed < math.min(share, entry[WANTED]) then
    for name, other in pairs(others) do
      if other[HELD] > math.max(other[IN_USE], shares[name] or 0) then return allowed, true end
    end
  end
  return allowed, is_urgent and held_by_others > 0 and allowed < math.min(whole, entry[WANTED])
end

local contended, contended_names, all_allowed, all_unused = {}, {}, {}, {}
for index = 3, #KEYS do
  local at = 8 + (index - 3) * 6
  local name, held, in_use = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local wanted, limit, is_urgent = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), ARGV[at + 6] == '1'
  if is_fenced then held = in_use end
  local others, before = others_of(KEYS[index])
  local least
  for _, other in pairs(others) do
    if other[WANTED] > 0 then least = math.min(least or math.huge, served(other)) end
  end
  local had_service = before and served(before) or least or 0
  local entry = {mine[1], held, in_use, wanted, limit, now + lease, had_service, now}
  local whole, used = limit, in_use
  for _, other in pairs(others) do
    whole, used = math.min(whole, other[LIMIT]), used + other[IN_USE]
  end
  all_unused[#all_unused + 1] = math.max(0, whole - used)
  local allowed, is_contended = held, false
  if not is_recovering then allowed, is_contended = grant(entry, others, is_urgent) end
  entry[HELD] = math.max(held, allowed)
  if (before and before[HELD] or 0) > entry[HELD] then
    for _, other in pairs(others) do
      if other[WANTED] > other[HELD] then is_contended = true end
    end
  end
  if entry[HELD] == 0 and wanted == 0 then
    redis.call('HDEL', KEYS[index], me)
  else
    redis.call('HSET', KEYS[index], me, text(entry))
    redis.call('PEXPIRE', KEYS[index], 2 * lease)
  end
  if is_contended then
    contended[#contended + 1] = index - 3
    contended_names[#contended_names + 1] = name
  end
  all_allowed[#all_allowed + 1] = allowed
end
if #contended > 0 then redis.call('PUBLISH', channel, me .. '\\n' .. table.concat(contended_names, '\\n')) end
local answer = {0, mine[1], num_living, is_recovering and 1 or 0, #contended}
for _, place in ipairs(contended) do answer[#answer + 1] = place end
for _, allowed in ipairs(all_allowed) do answer[#answer + 1] = allowed end
for _, unused in ipairs(all_unused) do answer[#answer + 1] = unused end
return answer
"""
