"""Boxes, rays and points."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import Arguments, Cells, normal

CELLS = Cells()


@helion.kernel
def overlap_bits(boxes: torch.Tensor, limit: float) -> torch.Tensor:
    """Bit j of word `[i, k]`: box i overlaps box `32 k + j`, by intersection over union."""
    n = boxes.size(0)
    words = n // 32
    blocks = boxes.view(words, 32, 4)
    out = torch.empty([n, words], dtype=torch.int32, device=boxes.device)
    for ti, tk in hl.tile([n, words]):
        x0, y0, x1, y1 = boxes[ti, 0], boxes[ti, 1], boxes[ti, 2], boxes[ti, 3]
        u0, v0, u1, v1 = blocks[tk, :, 0], blocks[tk, :, 1], blocks[tk, :, 2], blocks[tk, :, 3]
        w = torch.minimum(x1[:, None, None], u1[None]) - torch.maximum(x0[:, None, None], u0[None])
        h = torch.minimum(y1[:, None, None], v1[None]) - torch.maximum(y0[:, None, None], v0[None])
        inter = torch.relu(w) * torch.relu(h)
        area, other = (x1 - x0) * (y1 - y0), (u1 - u0) * (v1 - v0)
        hit = inter > limit * (area[:, None, None] + other[None] - inter)
        bits = hit.to(torch.int32) << hl.arange(32)[None, None, :]
        out[ti, tk] = bits.sum(-1).to(torch.int32)
    return out


def overlap_bits_torch(boxes: torch.Tensor, limit: float) -> torch.Tensor:
    n = boxes.size(0)
    a, b = boxes[:, None], boxes[None]
    wh = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    hit = inter > limit * (area[:, None] + area[None] - inter)
    bits = hit.view(n, n // 32, 32).long() << torch.arange(32, device=boxes.device)
    return bits.sum(-1).to(torch.int32)


def make_overlap_bits(device: str, small: bool) -> Arguments:
    n = 96 if small else 8192
    corner = torch.randint(0, 200, [n, 2], device=device).float()
    return torch.cat([corner, corner + torch.randint(1, 40, [n, 2], device=device).float()], 1), 0.3


CELLS.add(overlap_bits, make_overlap_bits, overlap_bits_torch)


@helion.kernel
def ray_boxes(
    origin: torch.Tensor, direction: torch.Tensor, low: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distance to the nearest box that each ray enters, and the box; 1e9 and -1 without one."""
    r, b = origin.size(0), low.size(0)
    distance = torch.empty([r], dtype=torch.float32, device=origin.device)
    box = torch.empty([r], dtype=torch.int32, device=origin.device)
    for rays in hl.tile(r):
        best = hl.full([rays], 1e9, dtype=torch.float32)
        which = hl.full([rays], -1, dtype=torch.int32)
        for i in range(b):
            near = hl.zeros([rays], dtype=torch.float32)
            far = hl.full([rays], float("inf"), dtype=torch.float32)
            for axis in hl.static_range(3):
                inverse = 1.0 / direction[rays, axis]
                t0 = (low[i, axis] - origin[rays, axis]) * inverse
                t1 = (up[i, axis] - origin[rays, axis]) * inverse
                near = torch.maximum(near, torch.minimum(t0, t1))
                far = torch.minimum(far, torch.maximum(t0, t1))
            hit = (near <= far) & (near < best)
            best = torch.where(hit, near, best)
            which = torch.where(hit, i, which)
        distance[rays] = best
        box[rays] = which
    return distance, box


def ray_boxes_torch(
    origin: torch.Tensor, direction: torch.Tensor, low: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 1.0 / direction[:, None]
    t0, t1 = (low - origin[:, None]) * inverse, (up - origin[:, None]) * inverse
    near = torch.minimum(t0, t1).amax(-1).clamp(min=0)
    far = torch.maximum(t0, t1).amin(-1)
    near = torch.where(near <= far, near, 1e9)
    best, at = near.min(1)
    return best, torch.where(best == 1e9, -1, at).int()


def make_ray_boxes(device: str, small: bool) -> Arguments:
    r, b = (77, 11) if small else (262144, 64)
    low = normal(device, b, 3, scale=5.0)
    return normal(device, r, 3), normal(device, r, 3), low, low + torch.rand([b, 3], device=device) + 0.1


CELLS.add(ray_boxes, make_ray_boxes, ray_boxes_torch)


@helion.kernel
def chamfer(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest squared distance of each point of `x[B, N, 3]` to the points `y[B, M, 3]`, and the nearest point."""
    b, n, _ = x.size()
    m = y.size(1)
    out = torch.empty([b, n], dtype=torch.float32, device=x.device)
    place = torch.empty([b, n], dtype=torch.int64, device=x.device)
    for tb, tn in hl.tile([b, n], block_size=[1, None]):
        i = tb.begin
        best = hl.full([tn], float("inf"), dtype=torch.float32)
        at = hl.zeros([tn], dtype=torch.int64)
        for tm in hl.tile(m):
            d0 = x[i, tn, 0][:, None] - y[i, tm, 0][None, :]
            d1 = x[i, tn, 1][:, None] - y[i, tm, 1][None, :]
            d2 = x[i, tn, 2][:, None] - y[i, tm, 2][None, :]
            dist = d0 * d0 + d1 * d1 + d2 * d2
            low, where = dist.amin(1), dist.argmin(1) + tm.begin
            at = torch.where(low < best, where, at)
            best = torch.minimum(best, low)
        out[i, tn] = best
        place[i, tn] = at
    return out, place


def chamfer_torch(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
    low, at = d.min(-1)
    return low, at


def make_chamfer(device: str, small: bool) -> Arguments:
    b, n, m = (2, 41, 63) if small else (8, 4096, 4096)
    return normal(device, b, n, 3), normal(device, b, m, 3)


CELLS.add(chamfer, make_chamfer, chamfer_torch)


@helion.kernel
def project_points(points: torch.Tensor, camera: torch.Tensor, w: int, h: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixel and depth `[B, N, 3]` of points `[B, N, 3]` by a matrix `[B, 3, 4]`, and those that are in the image."""
    b, n, _ = points.size()
    out = torch.empty([b, n, 3], dtype=torch.float32, device=points.device)
    inside = torch.empty([b, n], dtype=torch.bool, device=points.device)
    for tb, tn in hl.tile([b, n]):
        x, y, z = points[tb, tn, 0], points[tb, tn, 1], points[tb, tn, 2]
        parts = []
        for i in hl.static_range(3):
            c = camera
            parts.append(
                c[tb, i, 0][:, None] * x + c[tb, i, 1][:, None] * y + c[tb, i, 2][:, None] * z + c[tb, i, 3][:, None]
            )
        depth = parts[2]
        u, v = parts[0] / depth, parts[1] / depth
        out[tb, tn, 0] = u
        out[tb, tn, 1] = v
        out[tb, tn, 2] = depth
        inside[tb, tn] = (depth > 0) & (u >= 0) & (u < w) & (v >= 0) & (v < h)
    return out, inside


def project_points_torch(
    points: torch.Tensor, camera: torch.Tensor, w: int, h: int
) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.einsum("bij,bnj->bni", camera[:, :, :3], points) + camera[:, None, :, 3]
    u, v, depth = p[..., 0] / p[..., 2], p[..., 1] / p[..., 2], p[..., 2]
    return torch.stack([u, v, depth], -1), (depth > 0) & (u >= 0) & (u < w) & (v >= 0) & (v < h)


def make_project_points(device: str, small: bool) -> Arguments:
    b, n = (3, 63) if small else (16, 250_000)
    camera = (
        torch.tensor([[500.0, 0, 320, 10], [0, 500, 240, 20], [0, 0, 1, 5]]).expand(b, 3, 4).contiguous().to(device)
    )
    return torch.rand([b, n, 3], device=device) * 4 - 2, camera, 640, 480


CELLS.add(project_points, make_project_points, project_points_torch)
