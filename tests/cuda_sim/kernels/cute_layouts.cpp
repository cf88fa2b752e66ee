// Prints where CuTe, NVIDIA's own tables, says that elements lie: one line for each layout, its
// name and then numbers. Host code only; needs the headers of nvidia-cutlass.
#include <cstdio>

// clang-format off: each needs those before it.
#include <cute/tensor.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
// clang-format on

using namespace cute;

namespace {

// The element of each value of each lane; a matrix of some rows counts columns first.
template <class Layout>
void print_table(const char* name, Layout layout, int lanes, int values) {
  printf("%s", name);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int value = 0; value < values; ++value) printf(" %d", int(layout(lane, value)));
  }
  printf("\n");
}

template <class Operation>
void print_mma(const char* name) {
  using Traits = MMA_Traits<Operation>;
  typename Traits::ALayout a;
  typename Traits::BLayout b;
  typename Traits::CLayout c;
  char part[64];
  snprintf(part, sizeof part, "%s.a", name);
  print_table(part, a, 32, size<1>(a));
  snprintf(part, sizeof part, "%s.b", name);
  print_table(part, b, 32, size<1>(b));
  snprintf(part, sizeof part, "%s.c", name);
  print_table(part, c, 32, size<1>(c));
}

// Both sides number bits of the same matrices: for each half that a lane gets, the lane whose
// address gives it and its place in that row.
template <class Operation>
void print_ldmatrix(const char* name, int matrices) {
  typename Copy_Traits<Operation>::SrcLayout source;
  typename Copy_Traits<Operation>::DstLayout target;
  printf("%s", name);
  for (int lane = 0; lane < 32; ++lane) {
    for (int value = 0; value < 2 * matrices; ++value) {
      for (int giver = 0; giver < 8 * matrices; ++giver) {
        for (int element = 0; element < 8; ++element) {
          if (int(source(giver, 16 * element)) == int(target(lane, 16 * value))) {
            printf(" %d", 8 * giver + element);
          }
        }
      }
    }
  }
  printf("\n");
}

alignas(1024) bfloat16_t tile[64 * 64];

template <class T>
int offset_of(const T* place) {
  return int(reinterpret_cast<const char*>(place) - reinterpret_cast<const char*>(tile));
}

// A tile of 64 rows, 64 deep: the descriptors of its four steps of 16, then the byte offset of each
// element, row by row.
template <class Atom, GMMA::Major kMajor>
void print_wgmma(const char* name) {
  const auto whole = make_tensor(make_smem_ptr(tile), tile_to_shape(Atom{}, Shape<_64, _64>{}));
  int numbers[16];
  for (int step = 0; step < 4; ++step) {
    const auto part = local_tile(whole, Shape<_64, _16>{}, make_coord(0, step));
    const auto fields = SM90::GMMA::make_gmma_desc<kMajor>(part).bitfield;
    numbers[4 * step] = offset_of(raw_pointer_cast(part.data()));
    numbers[4 * step + 1] = int(fields.leading_byte_offset_) * 16;
    numbers[4 * step + 2] = int(fields.stride_byte_offset_) * 16;
    numbers[4 * step + 3] = int(fields.layout_type_);
  }
  printf("%s", name);
  for (int number : numbers) printf(" %d", number);
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 64; ++k) printf(" %d", offset_of(&whole(row, k)));
  }
  printf("\n");
}

}  // namespace

int main() {
  using T = bfloat16_t;
  print_mma<SM80_16x8x16_F32BF16BF16F32_TN>("m16n8k16.bf16");
  print_mma<SM80_16x8x16_F32F16F16F32_TN>("m16n8k16.f16");
  print_mma<SM80_16x8x8_F32BF16BF16F32_TN>("m16n8k8.bf16");
  print_mma<SM80_16x8x8_F32TF32TF32F32_TN>("m16n8k8.tf32");
  print_ldmatrix<SM75_U32x1_LDSM_N>("ldmatrix.x1", 1);
  print_ldmatrix<SM75_U32x2_LDSM_N>("ldmatrix.x2", 2);
  print_ldmatrix<SM75_U32x4_LDSM_N>("ldmatrix.x4", 4);
  print_ldmatrix<SM75_U16x2_LDSM_T>("ldmatrix.x1.trans", 1);
  print_ldmatrix<SM75_U16x4_LDSM_T>("ldmatrix.x2.trans", 2);
  print_ldmatrix<SM75_U16x8_LDSM_T>("ldmatrix.x4.trans", 4);
  print_table("m64n64.c", SM90::GMMA::CLayout_64x64{}, 128, 32);
  print_wgmma<GMMA::Layout_K_INTER_Atom<T>, GMMA::Major::K>("wgmma.k.0");
  print_wgmma<GMMA::Layout_K_SW32_Atom<T>, GMMA::Major::K>("wgmma.k.32");
  print_wgmma<GMMA::Layout_K_SW64_Atom<T>, GMMA::Major::K>("wgmma.k.64");
  print_wgmma<GMMA::Layout_K_SW128_Atom<T>, GMMA::Major::K>("wgmma.k.128");
  print_wgmma<GMMA::Layout_MN_INTER_Atom<T>, GMMA::Major::MN>("wgmma.mn.0");
  print_wgmma<GMMA::Layout_MN_SW32_Atom<T>, GMMA::Major::MN>("wgmma.mn.32");
  print_wgmma<GMMA::Layout_MN_SW64_Atom<T>, GMMA::Major::MN>("wgmma.mn.64");
  print_wgmma<GMMA::Layout_MN_SW128_Atom<T>, GMMA::Major::MN>("wgmma.mn.128");
}
