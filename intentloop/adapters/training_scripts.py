"""The steps of the training set as scripts, so that sets, ledger and tallies move together or not at all.

KEYS: 1 samples, 2 digests, 3 hard, 4 used, 5 fresh, 6 golden, 7 golden digests, 8 golden users, 9 ledger, 10 tallies.
The ledger remembers every label by its id: what was counted once is never counted again.
"""

_SHARED = """
local function tally(name, step) redis.call('HINCRBY', KEYS[10], name, step) end
local function remove(id)
  local old = redis.call('HGET', KEYS[1], id)
  if not old then return end
  local sample = cjson.decode(old)
  redis.call('HDEL', KEYS[1], id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('SREM', KEYS[5], id)
  if redis.call('HGET', KEYS[2], sample['sample']['digest']) == id then
    redis.call('HDEL', KEYS[2], sample['sample']['digest'])
  end
  tally('class:' .. sample['intent'], -1)
  tally('revision', 1)
end
"""

# ARGV: 1 label id, 2 ledger record, 3 label, 4 place, 5 sample id, 6 digest, 7 user, 8 intent, 9 hard, 10 time,
# 11 source, 12 golden sample, 13 cost in micro-yuan, 14... names of tallies to move by one
ADD = (
    _SHARED
    + """
if redis.call('HSETNX', KEYS[9], ARGV[1], ARGV[2]) == 0 then return 0 end
for index = 14, #ARGV do tally(ARGV[index], 1) end
tally('cost_micro', tonumber(ARGV[13]))
if ARGV[4] == 'golden' then
  redis.call('HSET', KEYS[6], ARGV[5], ARGV[12])
  redis.call('HSET', KEYS[7], ARGV[6], ARGV[5])
  redis.call('SADD', KEYS[8], ARGV[7])
  local same = redis.call('HGET', KEYS[2], ARGV[6])
  if same then remove(same) end
  remove(ARGV[5])
end
if ARGV[4] ~= 'train' then return 1 end
if redis.call('HEXISTS', KEYS[7], ARGV[6]) == 1 or redis.call('SISMEMBER', KEYS[8], ARGV[7]) == 1 then
  tally('golden_refused', 1)
  return 1
end
local same = redis.call('HGET', KEYS[2], ARGV[6])
local mine = redis.call('HGET', KEYS[1], ARGV[5])
local outranked = mine and cjson.decode(mine)['source'] == 'person'
if ARGV[11] ~= 'person' and (outranked or (same and same ~= ARGV[5])) then
  tally('duplicates', 1)
  return 1
end
if same then remove(same) end
remove(ARGV[5])
redis.call('HSET', KEYS[1], ARGV[5], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[6], ARGV[5])
tally('class:' .. ARGV[8], 1)
tally('revision', 1)
if ARGV[9] == '1' then
  redis.call('ZADD', KEYS[3], ARGV[10], ARGV[5])
  if redis.call('HEXISTS', KEYS[4], ARGV[5]) == 0 then redis.call('SADD', KEYS[5], ARGV[5]) end
end
return 1
"""
)

# ARGV: 1 sample id, 2 sample, 3 digest, 4 user
ADD_GOLDEN = (
    _SHARED
    + """
local known = redis.call('HGET', KEYS[7], ARGV[3])
if known and known ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[6], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[7], ARGV[3], ARGV[1])
redis.call('SADD', KEYS[8], ARGV[4])
local same = redis.call('HGET', KEYS[2], ARGV[3])
if same then remove(same) end
return 1
"""
)

# ARGV: 1 version, 2... ids
MARK_USED = """
for index = 2, #ARGV do
  redis.call('HSET', KEYS[4], ARGV[index], ARGV[1])
  redis.call('SREM', KEYS[5], ARGV[index])
end
return #ARGV - 1
"""

COUNTS = """
return {redis.call('HLEN', KEYS[1]), redis.call('ZCARD', KEYS[3]), redis.call('SCARD', KEYS[5]),
        redis.call('HLEN', KEYS[6]), redis.call('HLEN', KEYS[9]), redis.call('HGETALL', KEYS[10])}
"""

ALL = {"add": ADD, "add_golden": ADD_GOLDEN, "mark_used": MARK_USED, "counts": COUNTS}
