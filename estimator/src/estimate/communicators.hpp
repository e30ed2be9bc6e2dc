// What NCCL holds outside of the allocator for the process groups of a trainer: a ring's buffers for each group, and for groups
// whose ranks send to one another the buffers of every pair.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan {

/// Whom a rank of a group sends to and receives from, beside the ring of collectives.
enum class Exchange : std::uint8_t { none, neighbours, all };

struct ProcessGroup {
  std::int64_t size = 1;
  std::int64_t stride = 1;  ///< between the numbers of two ranks that are neighbours in the group
  Exchange exchange = Exchange::none;
};

/// Groups of more than one rank that a trainer's process belongs to. Ranks are numbered with tensor parallelism innermost, then
/// context, then data parallelism, and pipeline stages outermost.
std::vector<ProcessGroup> process_groups(const Job&, const Role&);

/// Bytes of one group on each of its GPUs: `communicator_bytes` for the ranks on one machine; for every rank there that is sent
/// to, `p2p_channels` times `ring_channel_bytes`; for ranks of other machines, whatever their number, a pool to send from and one
/// to receive into (`p2p_pool_bytes`). Source: NVIDIA/nccl 2.27 and 2.30, src/transport/p2p.cc, src/transport/net.cc
/// (sharedNetBuffersInit), src/graph/paths.cc.
Bytes communicator_bytes(const ProcessGroup&, const Cluster&, const Catalog&);

}  // namespace oomplan
